"""The round: draft, verify, accept, emit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import perf_counter

from .draft import Draft
from .ground import Ground
from .pace import Pace
from .proposers import Proposers
from .proposers.base import Ask, Seen
from .request import Emission, Running
from .scheduler import Plan, Scheduler
from .verifier import Verifier


class Loop:
    """Runs rounds over whatever is submitted, batched; sequences with different proposers share the target's pass."""

    def __init__(self, scheduler: Scheduler, verifier: Verifier, proposers: Proposers, pace: Pace) -> None:
        self.scheduler = scheduler
        self.verifier = verifier
        self._proposers = proposers
        """Not asked for ``off``."""
        self._pace = pace
        self._draft_seconds = 0.0
        self._began: dict[Hashable, tuple[float, float, float]] = {}
        self._admitted: dict[Hashable, float] = {}

    def round(self) -> list[Emission]:
        """One emission for each running sequence, none when there is none; those that ended leave."""
        self._read()
        if not self.scheduler.running:
            return []
        began = perf_counter()
        plan = self.scheduler.plan(self._grounds() if self.scheduler.chooses else {})
        self.verifier.check(plan)
        drafts = self.scheduler.cut(plan, *self._propose(plan))
        drafted = perf_counter()
        scores = self.verifier.score(plan, drafts)
        verdicts = [s.judge(rows, draft) for s, rows, draft in zip(plan.sequences, scores, drafts, strict=True)]
        self._observe(plan.sequences, self.verifier.commit(plan, verdicts))
        emissions = [s.take(v, r, d) for s, v, r, d in zip(plan.sequences, verdicts, scores, drafts, strict=True)]
        self.scheduler.observe(plan, drafts, emissions, perf_counter() - drafted)
        self._clock(plan.sequences)
        self._pace.round_took(len(plan.sequences), perf_counter() - began)
        self._retire([sequence for sequence in plan.sequences if sequence.finish_reason is not None])
        return emissions

    def cancel(self, owner: Hashable) -> None:
        """Take a request out between rounds, wherever it is; what it held is free at once."""
        sequence = self.scheduler.holding(owner)
        if sequence is not None:
            self._release(sequence)
        self.scheduler.forget(owner)

    def _read(self) -> None:
        """Read prompts, one after the other, as far as the pace allows between two rounds.

        One that has been read joins those that run; this copies it. One that took several such gaps joins in a gap of its own.
        """
        begun = self.scheduler.reading
        if begun is not None and not self.verifier.unread(begun):
            self._start(begun)
            return
        left = self._pace.tokens(len(self.scheduler.running), self.scheduler.to_run)
        while left > 0 and (sequence := self.scheduler.reading or self._admit()) is not None:
            left -= self._read_piece(sequence, left)
            if not self.verifier.unread(sequence):
                if sequence is begun and self.scheduler.running:
                    return
                self._start(sequence)

    def _admit(self) -> Running | None:
        sequence = self.scheduler.admit()
        if sequence is not None:
            self._admitted[sequence.id] = perf_counter()
            sequence.counter.reused_tokens = self.verifier.admit(sequence)
            if sequence.request.method != "off":
                self._proposers[sequence.request.method].admit(sequence)
        return sequence

    def _read_piece(self, sequence: Running, limit: int) -> int:
        """Read at most ``limit`` tokens of a prompt; returns how many."""
        began, unread = perf_counter(), self.verifier.unread(sequence)
        piece = min(limit, unread)
        self._observe([sequence], [self.verifier.read(sequence, piece)])
        if sequence.request.method != "off":
            self._proposers[sequence.request.method].read(sequence, len(sequence.tokens) - 1 - unread + piece)
        if piece:
            self._pace.reading_took(piece, perf_counter() - began)
        return piece

    def _start(self, sequence: Running) -> None:
        """Its prompt has been read: it takes part in rounds."""
        self.verifier.start(sequence)
        if sequence.request.method != "off":
            self._proposers[sequence.request.method].start(sequence)
        self.scheduler.start()
        self._began[sequence.id] = self._now(sequence)
        sequence.counter.prefill_seconds = perf_counter() - self._admitted[sequence.id]

    def _grounds(self) -> dict[Hashable, Ground | None]:
        """What the drafts of this round would rest on."""
        grounds: dict[Hashable, Ground | None] = {}
        for sequence in self.scheduler.running:
            if sequence.request.method != "off":
                budget = sequence.request.tree_budget
                ask = Ask(sequence, max(1, budget - 1) if budget else self.scheduler.max_draft_len, budget=budget)
                grounds[sequence.id] = self._proposers[sequence.request.method].ground(ask)
        return grounds

    def _propose(self, plan: Plan) -> tuple[list[Draft], dict[str, float]]:
        """Each method's sequences go to its proposer together; the drafts come back in the plan's order, with each method's seconds."""
        drafts: dict[Hashable, Draft] = {}
        seconds: dict[str, float] = {}
        for method in {sequence.request.method for sequence in plan.sequences} - {"off"}:
            began = perf_counter()
            wanted = [(s, shape) for s, shape in zip(plan.sequences, plan.shapes, strict=True) if s.request.method == method]
            asks = [Ask(s, shape.length, budget=shape.budget, least=self.scheduler.least(s, shape)) for s, shape in wanted]
            for ask, draft in zip(asks, self._proposers[method].propose(asks), strict=True):
                assert draft.depth <= ask.draft_len, f"{method} drafted {draft.depth} deep, {ask.draft_len} were asked for"
                assert ask.branches or draft.is_chain, f"{method} drafted a tree, a chain was asked for"
                assert len(draft) <= ask.budget, f"{method} drafted {len(draft)} tokens, {ask.budget} were asked for"
                drafts[ask.sequence.id] = draft
            seconds[method] = perf_counter() - began
        self._draft_seconds += sum(seconds.values())
        return [drafts.get(sequence.id, Draft.EMPTY) for sequence in plan.sequences], seconds

    def _observe(self, sequences: Sequence[Running], all_seen: Sequence[Seen | None]) -> None:
        """Proposers learn what the target knew at the tokens that it has just read."""
        for sequence, seen in zip(sequences, all_seen, strict=True):
            if seen is not None and sequence.request.method != "off":
                self._proposers[sequence.request.method].observe(sequence, seen)

    def _retire(self, finished: Sequence[Running]) -> None:
        # Forgotten only when all is given back: an interruption in between leaves it to ``cancel``.
        for sequence in finished:
            self._release(sequence)
            self.scheduler.forget(sequence.id)

    def _release(self, sequence: Running) -> None:
        self.verifier.retire(sequence)
        if sequence.request.method != "off":
            self._proposers[sequence.request.method].retire(sequence)
        self._began.pop(sequence.id, None)
        self._admitted.pop(sequence.id, None)

    def _now(self, sequence: Running) -> tuple[float, float, float]:
        """Wall clock, seconds inside engines and seconds proposing, as the sequence sees them."""
        engines = self.verifier.engine_seconds
        if sequence.request.method != "off":
            engines += self._proposers[sequence.request.method].engine_seconds
        return perf_counter(), engines, self._draft_seconds

    def _clock(self, sequences: Sequence[Running]) -> None:
        for sequence in sequences:
            now, began = self._now(sequence), self._began[sequence.id]
            counter = sequence.counter
            counter.decode_seconds, counter.engine_seconds, counter.draft_seconds = (n - b for n, b in zip(now, began, strict=True))
