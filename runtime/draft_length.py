"""How many tokens to draft, and whether as a tree: what emits most a second, by what passes cost and what was accepted so far.

With aᵢ the acceptance at depth i (given that i was reached) of drafts that rest on the like (what is copied after a match of nine tokens is
right twice as often as after one), c the share of rounds in which there is anything to draft,

    E(k) = 1 + c · Σ_{i≤k} Π_{j≤i} aⱼ          tokens that a sequence emits in a round
    t(k) = T_target(B, n + 1) + k · T_draft(B, n/k)   seconds that the round takes where anybody drafts (Medusa: one draft pass)

and the depth k and the number of tokens n (k in a chain, the budget of a tree) maximise Σ E / t over the sequences of the batch, which
share the pass. Where some copy, which is free, and others ask a model, those others may be given fewer. k = 0 is a choice like the
others: it is plain decoding. This is the speed-up of 2211.17192 with measured times in place of its cost ratio; T(B, 1)/T(B, n + 1) is
known as target efficiency.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import mul
from types import MappingProxyType

from .acceptance_record import Record, Records, expected
from .calibration import Calibration
from .draft import NOTHING, Draft, Shape
from .ground import Ground
from .request import Running
from .step_times import StepTimes

OWN_WEIGHT = 8.0
"""Observations that a method's rate stands for beside a sequence's own."""
HYSTERESIS = 1.03
"""A new shape must promise so much more than the current one."""
TRY_AGAIN = 32
"""Rounds without drafts after which one token is drafted again, to see whether it still does not pay."""
CONTEXT_STEP = 64
"""Contexts are rounded to multiples of this many tokens."""
DEEPEST = 10
"""Levels of a tree that are worth weighing."""

Grounds = Mapping[Hashable, Ground | None]
"""Sequence → what its draft would rest on; None: there is nothing to draft. Of one that is not in it nothing is known."""


@dataclass(frozen=True)
class DraftTimes:
    """What a method's own passes cost."""

    step: StepTimes
    at_once: bool = False
    """One pass gives all tokens (Medusa heads), not one each level."""
    shared: bool = False
    """They are passes of the target's own first layers, which then need not read the draft again (early exit)."""

    def seconds(self, batch: int, shape: Shape, context: int) -> float:
        """Seconds of drafting for each of ``batch`` sequences."""
        length, one = shape.length, self.step.seconds(batch, 1, context)
        if self.shared:  # chains alone
            return one * length - (self.step.seconds(batch, 1 + length, context) - one)
        if self.at_once or not length:
            return one * min(length, 1)
        return self.step.seconds(batch, ceil(shape.budget / length), context) * length


class DraftLength:
    """Chooses one shape a round for all that leave it open; who allows no tree of that size gets the largest that it allows."""

    def __init__(self, longest: int, target: StepTimes, drafts: Mapping[str, DraftTimes]) -> None:
        """``drafts``: method → times of its own engine, where it has one."""
        self._longest = longest
        self._target, self._drafts = target, drafts
        self._records = Records(longest)
        self._own: dict[tuple[Hashable, Ground], Record] = {}
        """Of chains of each sequence that runs."""
        self._grounds: Grounds = {}
        """Of this round."""
        self._calibration = Calibration()
        self._current = Shape.chain(min(4, longest))
        self._idle_rounds = 0

    def choose(self, running: Sequence[Running], grounds: Grounds = MappingProxyType({})) -> dict[Hashable, Shape]:
        """Shape of the draft of each sequence that speculates and did not fix its own."""
        drafting = [sequence for sequence in running if sequence.request.method != "off"]
        self._grounds = {sequence.id: grounds.get(sequence.id, Ground()) for sequence in drafting}
        self._own = {(owner, ground): record for (owner, ground), record in self._own.items() if owner in self._grounds}
        left_open = [sequence for sequence in drafting if not sequence.request.draft_len_fixed]
        open_ = [sequence for sequence in left_open if self._grounds[sequence.id] is not None]
        chosen = dict.fromkeys((sequence.id for sequence in left_open), NOTHING)
        if not open_:
            return chosen
        fixed = max((sequence.request.shape.budget for sequence in drafting if sequence.request.draft_len_fixed), default=0)
        shape, thought = self._best(open_, len(running), fixed)
        self._records.pass_by(shape)
        if shape.length == 0:
            self._idle_rounds += 1
            if self._idle_rounds >= TRY_AGAIN:
                self._idle_rounds, shape, thought = 0, Shape.chain(1), 1
        return chosen | {sequence.id: self._given(sequence, shape, thought) for sequence in open_}

    def cut(self, running: Sequence[Running], drafts: Sequence[Draft]) -> list[Draft]:
        """``drafts`` without what would cost more to verify than it brings, as far as their proposers say how sure they are.

        They are cut at one length, which maximises Σ E / t as in ``choose``, with E of just these tokens and what was spent on them in t.
        """
        sure: dict[Hashable, list[float]] = {
            sequence.id: [0.0, *accumulate(accumulate(self._chances(sequence.request.method, draft.confidence), mul))]
            for sequence, draft in zip(running, drafts, strict=True)
            if draft.confidence and not sequence.request.draft_len_fixed
        }
        if not sure:
            return list(drafts)
        others = [(sequence, len(draft)) for sequence, draft in zip(running, drafts, strict=True) if sequence.id not in sure and len(draft)]
        batch, widest = len(running), max((length for _, length in others), default=0)
        base = batch + sum(expected(self._rates(sequence, Shape.chain(0)))[min(length, self._longest)] for sequence, length in others)
        drafted = Shape.chain(max(map(len, sure.values())) - 1)
        context = self._context(running)
        models = {times for sequence in running if sequence.id in sure and (times := self._times(sequence)) is not None}
        spent = sum(times.seconds(batch, drafted, context) for times in models)

        def speed(length: int) -> float:
            tokens = base + sum(gains[min(length, len(gains) - 1)] for gains in sure.values())
            return tokens / (self._target.seconds(batch, 1 + max(widest, length), context) + spent)

        length = max(range(drafted.length, -1, -1), key=speed)
        return [draft.cut(length) if sequence.id in sure else draft for sequence, draft in zip(running, drafts, strict=True)]

    def learn(self, sequence: Running, draft: Draft, accepted: int, failed: bool) -> None:
        """How sure a chain was, and what became of it."""
        for place, confidence in enumerate((draft.confidence or ())[: accepted + failed]):
            self._calibration.observe(sequence.request.method, place, confidence, place < accepted)

    def observe(self, sequence: Running, asked: Shape, drafted: int, accepted: int, failed: bool) -> None:
        """What became of a round's draft; ``failed``: it went on after the accepted tokens and was rejected there."""
        ground = self._grounds.get(sequence.id)
        if asked.length and ground is not None:
            self._records.of(sequence.request.method, ground, asked).observe(drafted, accepted, failed)
            if not asked.branches:
                self._own.setdefault((sequence.id, ground), Record(self._longest)).observe(drafted, accepted, failed)

    def _shapes(self, largest: int) -> Iterator[Shape]:
        """Every chain; trees of the ``largest`` budget and of half of it."""
        for length in range(self._longest + 1):
            yield Shape.chain(length)
        for budget in {largest, largest // 2}:
            for length in range(1, min(budget, DEEPEST + 1)):
                yield Shape(length, budget)

    def _best(self, open_: Sequence[Running], batch: int, fixed: int) -> tuple[Shape, int]:
        """The shape for all, and how long the drafts are of those that ask a model."""
        context = self._context(open_)
        models = {sequence.id: times for sequence in open_ if (times := self._times(sequence)) is not None}
        gains: dict[tuple[Hashable, int], tuple[float, list[float]]] = {}

        def gain(sequence: Running, shape: Shape) -> tuple[float, float]:
            """(chance that there is a draft, tokens accepted of it)"""
            key = sequence.id, shape.budget if shape.branches else 0
            if key not in gains:
                gains[key] = self._record(sequence, shape).coverage, expected(self._rates(sequence, shape))
            share, by_length = gains[key]
            return share, by_length[shape.length]

        def speed(shape: Shape, thought: int | None = None) -> float:
            """Tokens a second; ``thought``: see the result; None: as deep as the shape."""
            tokens, nobody, thought = float(batch), 1.0, shape.length if thought is None else thought
            for sequence in open_:
                share, accepted = gain(sequence, self._given(sequence, shape, thought))
                tokens, nobody = tokens + share * accepted, nobody * (1 - share)
            plain = self._target.seconds(batch, 1 + fixed, context)
            drafting = self._target.seconds(batch, 1 + max(shape.budget, fixed), context)
            asked = shape if thought == shape.length else Shape.chain(thought)
            own = sum(times.seconds(batch, asked, context) for times in set(models.values()))
            return tokens / (nobody * plain + (1 - nobody) * drafting + own)

        largest = max(sequence.request.tree_budget for sequence in open_)
        if self._current.budget > max(largest, self._current.length):
            self._current = Shape.chain(self._current.length)  # those who allowed the tree have left
        mixed, shapes = 0 < len(models) < len(open_), tuple(self._shapes(largest))

        def thoughts(shape: Shape) -> int:
            return max(range(shape.length, -1, -1), key=lambda thought: speed(shape, thought)) if mixed else shape.length

        best = max(shapes, key=speed)
        if mixed:  # how far the others copy no longer depends on what a model is asked
            thought = thoughts(best)
            best = max(shapes, key=lambda shape: speed(shape, min(thought, shape.length)))
        if speed(best, thoughts(best)) > HYSTERESIS * speed(self._current, thoughts(self._current)):
            self._current = best
        return self._current, thoughts(self._current)

    def _context(self, sequences: Sequence[Running]) -> int:
        return max(len(sequence.tokens) for sequence in sequences) // CONTEXT_STEP * CONTEXT_STEP

    def _chances(self, method: str, confidence: Sequence[float]) -> list[float]:
        return [self._calibration.chance(method, place, one) for place, one in enumerate(confidence)]

    def _given(self, sequence: Running, shape: Shape, thought: int) -> Shape:
        """What ``sequence`` gets of ``shape``; of a model no more than ``thought`` deep."""
        less = thought < shape.length and self._times(sequence) is not None
        return _allowed(sequence, Shape.chain(thought) if less else shape)

    def _times(self, sequence: Running) -> DraftTimes | None:
        """Of the engine that drafts for it; None: its draft is copied, or costs nothing that is known."""
        ground = self._grounds[sequence.id]
        return None if ground is None or ground.copied else self._drafts.get(sequence.request.method)

    def _record(self, sequence: Running, shape: Shape) -> Record:
        return self._records.of(sequence.request.method, self._grounds[sequence.id] or Ground(), shape)

    def _rates(self, sequence: Running, shape: Shape) -> list[float]:
        """Acceptance by depth. A sequence's own record weighs more the longer it is; where trees are allowed it tells of neither kind."""
        rates = self._record(sequence, shape).rates
        own = self._own.get((sequence.id, self._grounds[sequence.id] or Ground()))
        if own is None or sequence.request.tree_budget:
            return rates
        for position, (accepted, reached) in enumerate(zip(own.accepted, own.reached, strict=True)):
            rates[position] = (accepted + OWN_WEIGHT * rates[position]) / (reached + OWN_WEIGHT)
        return rates


def _allowed(sequence: Running, shape: Shape) -> Shape:
    """What ``sequence`` may have of ``shape``."""
    budget = max(shape.length, min(shape.budget, sequence.request.tree_budget))
    return shape if budget == shape.budget else Shape(shape.length, budget)
