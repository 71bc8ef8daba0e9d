"""The trivial proposer: recorded continuations are drafted as they are. For tests and what-if measurements."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from ..draft import Draft
from .base import Ask, Proposer


class ReplayProposer(Proposer):
    """Drafts the recording of each request id: the tokens that followed its prompt when it was made."""

    def __init__(self, recordings: Mapping[Hashable, Sequence[int]]) -> None:
        self._recordings = recordings

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft.chain(self._next(ask)[: ask.draft_len]) for ask in asks]

    def _next(self, ask: Ask) -> Sequence[int]:
        return self._recordings.get(ask.sequence.id, ())[ask.sequence.context.output_length + len(ask.after) :]
