"""Medusa heads (2401.10774): each of the next tokens guessed from what the target knew at the last one that it read, all in one pass."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ..draft import Draft
from ..engine import Engine
from ..request import Running
from .base import Ask, Proposer, Seen
from .growth import Growth
from .joint import Joint


class MedusaProposer(Proposer):
    """An engine without a cache. The heads foretell the tokens after the last one that the target has not read, independently: the nodes
    of a tree's level all go on from the same logits."""

    def __init__(self, engine: Engine, joint: Joint) -> None:
        self._engine = engine
        self._joint = joint
        self._features: dict[Hashable, NDArray[np.float32]] = {}
        """[1,H] at the last token that was read."""
        self._seconds = 0.0

    @property
    def engine_seconds(self) -> float:
        return self._seconds

    def observe(self, sequence: Running, seen: Seen) -> None:
        self._features[sequence.id] = self._joint.features(seen.hidden[-1:])

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        growths = [Growth(ask) for ask in asks]
        going = [growth for growth in growths if growth.open and growth.sequence.id in self._features]
        if going:
            began = perf_counter()
            logits = self._engine.predict(np.stack([self._features[growth.sequence.id] for growth in going]))
            self._seconds += perf_counter() - began
            for growth, (rows,) in zip(going, logits, strict=True):
                for row in rows:  # of each head
                    growth.grow([self._joint.row(row)] * len(growth.open))
        return [growth.draft() for growth in growths]

    def retire(self, sequence: Running) -> None:
        self._features.pop(sequence.id, None)
