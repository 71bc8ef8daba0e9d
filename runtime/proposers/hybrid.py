"""Retrieval where its match is long enough, else a model: each sequence, each round."""

from __future__ import annotations

from collections.abc import Sequence

from ..draft import Draft
from ..request import Running
from .base import Ask, Proposer, Retriever, Seen


class HybridProposer(Proposer):
    """Both parts know every sequence; a model that was not asked for some rounds catches up when it is."""

    def __init__(self, retrieval: Retriever, model: Proposer, min_match: int) -> None:
        """``min_match``: tokens that retrieval has to match."""
        self._retrieval, self._model = retrieval, model
        self._min_match = min_match

    @property
    def engine_seconds(self) -> float:
        return self._retrieval.engine_seconds + self._model.engine_seconds

    def admit(self, sequence: Running) -> None:
        self._retrieval.admit(sequence)
        self._model.admit(sequence)

    def read(self, sequence: Running, length: int) -> None:
        self._retrieval.read(sequence, length)
        self._model.read(sequence, length)

    def start(self, sequence: Running) -> None:
        self._retrieval.start(sequence)
        self._model.start(sequence)

    def observe(self, sequence: Running, seen: Seen) -> None:
        self._retrieval.observe(sequence, seen)
        self._model.observe(sequence, seen)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        retrieved = [self._retrieval.match(ask) >= self._min_match for ask in asks]
        found = iter(self._retrieval.propose([ask for ask, hit in zip(asks, retrieved, strict=True) if hit]))
        thought = iter(self._model.propose([ask for ask, hit in zip(asks, retrieved, strict=True) if not hit]))
        return [next(found if hit else thought) for hit in retrieved]

    def retire(self, sequence: Running) -> None:
        self._retrieval.retire(sequence)
        self._model.retire(sequence)
