"""Retrieval where its match is long enough, else a model: each sequence, each round."""

from __future__ import annotations

from collections.abc import Sequence

from ..draft import Draft
from ..ground import Ground, copied
from .base import Ask, Composite, Proposer, Retriever


class HybridProposer(Composite):
    """Either may draft."""

    def __init__(self, retrieval: Retriever, model: Proposer, min_match: int) -> None:
        """``min_match``: tokens that retrieval has to match."""
        super().__init__(retrieval, model)
        self._retrieval, self._model = retrieval, model
        self._min_match = min_match

    def ground(self, ask: Ask) -> Ground | None:
        """Of whichever would draft."""
        match = self._retrieval.match(ask)
        return copied(match) if match >= self._min_match else self._model.ground(ask)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        retrieved = [self._retrieval.match(ask) >= self._min_match for ask in asks]
        found = iter(self._retrieval.propose([ask for ask, hit in zip(asks, retrieved, strict=True) if hit]))
        thought = iter(self._model.propose([ask for ask, hit in zip(asks, retrieved, strict=True) if not hit]))
        return [next(found if hit else thought) for hit in retrieved]
