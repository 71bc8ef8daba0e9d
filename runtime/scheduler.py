"""Who takes part in the next round, and with how many draft tokens."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .draft import Draft
from .draft_length import DraftLength
from .request import Emission, Running


@dataclass(frozen=True)
class Plan:
    """One round: its sequences and how many tokens may be drafted for each."""

    sequences: tuple[Running, ...]
    draft_lens: tuple[int, ...]


class Scheduler:
    """Sequences wait, then are read, then run. By priority, then first come, first served; at most ``rows`` are read or run."""

    def __init__(self, rows: int, max_seq_len: int, max_draft_len: int, draft_length: DraftLength | None = None) -> None:
        """``draft_length`` chooses for those that leave it open; None: they get the recipe's."""
        self._rows, self._max_seq_len, self._max_draft_len = rows, max_seq_len, max_draft_len
        self._draft_length = draft_length
        self._waiting: list[Running] = []
        self._reading: list[Running] = []
        self._running: list[Running] = []

    @property
    def idle(self) -> bool:
        """Nothing runs, is read or waits."""
        return not self._waiting and not self._reading and not self._running

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def reading(self) -> tuple[Running, ...]:
        """Those whose prompt is being read, the first admitted first."""
        return tuple(self._reading)

    @property
    def running(self) -> tuple[Running, ...]:
        """Those that decode."""
        return tuple(self._running)

    def submit(self, sequence: Running) -> None:
        """Put ``sequence`` into the queue, behind all of its priority."""
        insort(self._waiting, sequence, key=lambda other: other.request.priority)

    def admit(self) -> list[Running]:
        """Move sequences from the queue to the free rows, to be read; returns those."""
        free = self._rows - len(self._reading) - len(self._running)
        admitted, self._waiting = self._waiting[:free], self._waiting[free:]
        self._reading += admitted
        return admitted

    def start(self, sequence: Running) -> None:
        """The prompt of ``sequence`` is read: it takes part in rounds."""
        self._reading.remove(sequence)
        self._running.append(sequence)

    def plan(self) -> Plan:
        """All that run, each with as many draft tokens as are chosen for it, as it can still emit before its last, and as fit."""
        chosen = self._draft_length.choose(self._running) if self._draft_length is not None else {}
        return Plan(
            tuple(self._running),
            tuple(self._bounded(sequence, chosen.get(sequence.id, sequence.request.draft_len)) for sequence in self._running),
        )

    def _bounded(self, sequence: Running, draft_len: int) -> int:
        if sequence.request.method == "off":
            return 0
        room = self._max_seq_len - len(sequence.tokens)
        return max(0, min(draft_len, self._max_draft_len, sequence.wanted - 1, room))

    def observe(self, plan: Plan, drafts: Sequence[Draft], emissions: Sequence[Emission]) -> None:
        """Learn from a round what was accepted."""
        if self._draft_length is not None:
            for sequence, asked, draft, emission in zip(plan.sequences, plan.draft_lens, drafts, emissions, strict=True):
                self._draft_length.observe(sequence, asked, len(draft), emission.accepted, emission.failed)

    def holding(self, owner: Hashable) -> Running | None:
        """The sequence of ``owner`` if it was admitted, and so holds resources."""
        return next((sequence for sequence in (*self._reading, *self._running) if sequence.id == owner), None)

    def forget(self, owner: Hashable) -> None:
        """Take a sequence out wherever it is."""
        self._waiting, self._reading, self._running = (
            [sequence for sequence in stage if sequence.id != owner] for stage in (self._waiting, self._reading, self._running)
        )
