"""Who takes part in the next round, and with how many draft tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .request import Running


@dataclass(frozen=True)
class Plan:
    """One round: its sequences and how many tokens may be drafted for each."""

    sequences: tuple[Running, ...]
    draft_lens: tuple[int, ...]


class Scheduler:
    """First come, first served; at most ``rows`` sequences at a time."""

    def __init__(self, rows: int, max_seq_len: int, max_draft_len: int) -> None:
        self._rows, self._max_seq_len, self._max_draft_len = rows, max_seq_len, max_draft_len
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._waiting and not self._running

    def submit(self, sequence: Running) -> None:
        """Put ``sequence`` at the end of the queue."""
        self._waiting.append(sequence)

    def admit(self) -> list[Running]:
        """Move sequences from the queue to the free rows; returns those that now begin."""
        admitted = [self._waiting.popleft() for _ in range(min(self._rows - len(self._running), len(self._waiting)))]
        self._running += admitted
        return admitted

    def plan(self) -> Plan:
        """All that run, each with as many draft tokens as it asked for, as it can still emit before its last, and as fit."""
        return Plan(tuple(self._running), tuple(self._draft_len(sequence) for sequence in self._running))

    def _draft_len(self, sequence: Running) -> int:
        if sequence.request.method == "off":
            return 0
        room = self._max_seq_len - len(sequence.tokens)
        return max(0, min(sequence.request.draft_len, self._max_draft_len, sequence.wanted - 1, room))

    def retire(self, finished: Sequence[Running]) -> None:
        """Forget sequences that ended."""
        self._running = [sequence for sequence in self._running if sequence not in finished]

    def cancel(self, owner: Hashable) -> Running | None:
        """Take a sequence out wherever it is; returns it if it was running and so holds resources."""
        self._waiting = deque(sequence for sequence in self._waiting if sequence.id != owner)
        running = next((sequence for sequence in self._running if sequence.id == owner), None)
        if running is not None:
            self.retire([running])
        return running
