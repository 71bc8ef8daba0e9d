"""Who takes part in the next round, and with what drafts."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from .draft import NOTHING, Draft, Shape
from .draft_length import DraftLength, Grounds, Least
from .prefixes import common
from .request import Emission, Running


@dataclass(frozen=True)
class Plan:
    """One round: its sequences and what may be drafted for each."""

    sequences: tuple[Running, ...]
    shapes: tuple[Shape, ...]


class Scheduler:
    """Sequences wait, then are read, one at a time, then run. By priority, then first come, first served; at most ``rows`` run."""

    def __init__(self, rows: int, max_seq_len: int, max_draft_len: int, draft_length: DraftLength | None = None) -> None:
        """``draft_length`` chooses for those that leave it open; None: they get the recipe's."""
        self._rows, self._max_seq_len = rows, max_seq_len
        self.max_draft_len = max_draft_len
        """Tokens of a draft that the target can verify at once."""
        self._draft_length = draft_length
        self._waiting: list[Running] = []
        self._reading: Running | None = None
        self._running: list[Running] = []

    @property
    def idle(self) -> bool:
        """Nothing runs, is read or waits."""
        return not self._waiting and self._reading is None and not self._running

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def reading(self) -> Running | None:
        """The one whose prompt is being read."""
        return self._reading

    @property
    def running(self) -> tuple[Running, ...]:
        """Those that decode."""
        return tuple(self._running)

    def submit(self, sequence: Running) -> None:
        """Put ``sequence`` into the queue, behind all of its priority."""
        insort(self._waiting, sequence, key=lambda other: other.request.priority)

    @property
    def to_run(self) -> int:
        """How many will run when the prompts that wait have been read."""
        return min(self._rows, len(self.held) + self.waiting)

    @property
    def held(self) -> tuple[Running, ...]:
        """Those that hold resources."""
        return (*self._running, *([] if self._reading is None else [self._reading]))

    def admit(self) -> Running | None:
        """Take the next sequence from the queue, to be read; None when none waits or no row will be free for it."""
        assert self._reading is None, "one at a time"
        if self._waiting and len(self._running) < self._rows:
            self._reading = self._waiting.pop(0)
        return self._reading

    def start(self) -> None:
        """The prompt is read: its sequence takes part in rounds."""
        assert self._reading is not None, "a prompt is being read"
        self._running.append(self._reading)
        self._reading = None

    @property
    def chooses(self) -> bool:
        """Whether it is for the scheduler to say how long drafts are."""
        return self._draft_length is not None

    def plan(self, grounds: Grounds = MappingProxyType({})) -> Plan:
        """All that run, each with as long a draft as is chosen for it by what it would rest on, as it can still emit before its last
        token, and as fits."""
        chosen = self._draft_length.choose(self._running, grounds) if self._draft_length is not None else {}
        return Plan(
            tuple(self._running),
            tuple(self._bounded(sequence, chosen.get(sequence.id, sequence.request.shape)) for sequence in self._running),
        )

    def _bounded(self, sequence: Running, shape: Shape) -> Shape:
        if sequence.request.method == "off":
            return NOTHING
        room = self._max_seq_len - len(sequence.tokens)
        length = max(0, min(shape.length, self.max_draft_len, sequence.wanted - 1, room))
        budget = max(length, min(shape.budget, self.max_draft_len))
        # A tree's proposer may read as many nodes on each level as may stay, and its row has to hold them all.
        fits = 0 < length * (budget - length + 1) <= room
        return Shape(length, budget) if shape.branches and fits else Shape.chain(length)

    def least(self, sequence: Running, shape: Shape) -> Least | None:
        """See ``Ask``."""
        return None if self._draft_length is None else self._draft_length.least(sequence, len(self._running), shape.length)

    def cut(self, plan: Plan, drafts: Sequence[Draft], seconds: Mapping[str, float]) -> list[Draft]:
        """``drafts`` as far as they are worth verifying, where it is for the scheduler to say; each method took ``seconds`` for its own."""
        if self._draft_length is None:
            return list(drafts)
        self._draft_length.clock(plan.sequences, plan.shapes, drafts, seconds)
        return self._draft_length.cut(plan.sequences, drafts)

    def observe(self, plan: Plan, drafts: Sequence[Draft], emissions: Sequence[Emission], seconds: float) -> None:
        """Learn from a round what was accepted, and that it took ``seconds`` beside its drafts."""
        if self._draft_length is not None:
            self._draft_length.clock_target(plan.sequences, drafts, seconds)
            for sequence, asked, draft, emission in zip(plan.sequences, plan.shapes, drafts, emissions, strict=True):
                self._draft_length.observe(sequence, asked, len(draft), emission.accepted, emission.failed)
                self._draft_length.learn(sequence, draft, emission.accepted, emission.failed)
                if asked.branches:  # a chain would have been the first branch, and says what one is worth
                    chain = [draft.tokens[node] for node in draft.first_branch]
                    kept = common(np.array(chain, np.int64), np.array(emission.tokens))
                    failed = kept < min(len(chain), len(emission.tokens))
                    self._draft_length.observe(sequence, Shape.chain(asked.length), len(chain), kept, failed)

    def holding(self, owner: Hashable) -> Running | None:
        """The sequence of ``owner`` if it was admitted, and so holds resources."""
        return next((sequence for sequence in self.held if sequence.id == owner), None)

    def forget(self, owner: Hashable) -> None:
        """Take a sequence out wherever it is."""
        self._waiting, self._running = (
            [sequence for sequence in stage if sequence.id != owner] for stage in (self._waiting, self._running)
        )
        if self._reading is not None and self._reading.id == owner:
            self._reading = None
