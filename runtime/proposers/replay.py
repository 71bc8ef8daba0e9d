"""The trivial proposer: recorded continuations are drafted as they are. For tests and what-if measurements."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from ..draft import Draft
from ..request import Running
from .base import Ask


class ReplayProposer:
    """Drafts the recording of each request id: the tokens that followed its prompt when it was made."""

    engine_seconds = 0.0

    def __init__(self, recordings: Mapping[Hashable, Sequence[int]]) -> None:
        self._recordings = recordings

    def admit(self, sequence: Running) -> None:
        pass

    def read(self, sequence: Running, length: int) -> None:
        pass

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft.chain(self._next(ask)[: ask.draft_len]) for ask in asks]

    def _next(self, ask: Ask) -> Sequence[int]:
        return self._recordings.get(ask.sequence.id, ())[ask.sequence.context.output_length + len(ask.after) :]

    def retire(self, sequence: Running) -> None:
        pass
