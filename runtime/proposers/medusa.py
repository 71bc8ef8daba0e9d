"""Medusa heads (2401.10774): each of the next tokens guessed from what the target knew at the last one that it read, all in one pass."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from specbuild.errors import RequestError

from ..draft import Draft
from ..engine import Engine
from ..request import Running
from .base import Ask, Proposer, Seen
from .branch import Branch
from .joint import Joint


class MedusaProposer(Proposer):
    """An engine without a cache. The heads foretell the tokens after the last one that the target has not read, independently."""

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
        branches = [Branch(ask) for ask in asks]
        going = [branch for branch in branches if branch.missing and branch.sequence.id in self._features]
        if going:
            began = perf_counter()
            logits = self._engine.predict(np.stack([self._features[branch.sequence.id] for branch in going]))
            self._seconds += perf_counter() - began
            for branch, rows in zip(going, logits, strict=True):
                self._fill(branch, rows[0])
        return [branch.draft() for branch in branches]

    def retire(self, sequence: Running) -> None:
        self._features.pop(sequence.id, None)

    def _fill(self, branch: Branch, rows: NDArray[np.float32]) -> None:
        """A token from each head's logits [K,V] as far as tokens are asked for."""
        for row in rows[: branch.missing]:
            try:
                branch.choose(self._joint.row(row))
            except RequestError:  # what is forbidden here is all that these heads can draft
                return
