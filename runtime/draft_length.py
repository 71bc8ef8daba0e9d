"""How many tokens to draft, and whether as a tree: what emits most a second, by what passes cost and what was accepted so far.

With aᵢ the acceptance at depth i (given that i was reached), c the share of rounds in which there is anything to draft,

    E(k) = 1 + c · Σ_{i≤k} Π_{j≤i} aⱼ          tokens that a sequence emits in a round
    t(k) = T_target(B, n + 1) + k · T_draft(B, n/k)   seconds that the round takes where anybody drafts (Medusa: one draft pass)

and the depth k and the number of tokens n (k in a chain, the budget of a tree) maximise Σ E / t over the sequences of the batch, which
share the pass. k = 0 is a choice like the others: it is plain decoding. This is the speed-up of 2211.17192 with measured times in place of
its cost ratio; T(B, 1)/T(B, n + 1) is known as target efficiency.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from .acceptance_record import Records, expected
from .draft import Shape
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
        self._current = Shape.chain(min(4, longest))
        self._idle_rounds = 0

    def choose(self, running: Sequence[Running]) -> dict[Hashable, Shape]:
        """Shape of the draft of each sequence that speculates and did not fix its own."""
        drafting = [sequence for sequence in running if sequence.request.method != "off"]
        open_ = [sequence for sequence in drafting if not sequence.request.draft_len_fixed]
        if not open_:
            return {}
        fixed = max((sequence.request.shape.budget for sequence in drafting if sequence.request.draft_len_fixed), default=0)
        shape = self._best(open_, len(running), fixed)
        self._records.pass_by(shape)
        if shape.length == 0:
            self._idle_rounds += 1
            if self._idle_rounds >= TRY_AGAIN:
                self._idle_rounds, shape = 0, Shape.chain(1)
        return {sequence.id: _allowed(sequence, shape) for sequence in open_}

    def observe(self, sequence: Running, asked: Shape, drafted: int, accepted: int, failed: bool) -> None:
        """What became of a round's draft; ``failed``: it went on after the accepted tokens and was rejected there."""
        if asked.length:
            self._records.of(sequence.request.method, asked).observe(drafted, accepted, failed)

    def _shapes(self, largest: int) -> Iterator[Shape]:
        """Every chain; trees of the ``largest`` budget and of half of it."""
        for length in range(self._longest + 1):
            yield Shape.chain(length)
        for budget in {largest, largest // 2}:
            for length in range(1, min(budget, DEEPEST + 1)):
                yield Shape(length, budget)

    def _best(self, open_: Sequence[Running], batch: int, fixed: int) -> Shape:
        context = max(len(sequence.tokens) for sequence in open_) // CONTEXT_STEP * CONTEXT_STEP
        times = [self._drafts[method] for method in {sequence.request.method for sequence in open_} if method in self._drafts]
        gains: dict[tuple[Hashable, int], tuple[float, list[float]]] = {}

        def gain(sequence: Running, shape: Shape) -> tuple[float, float]:
            """(chance that there is a draft, tokens accepted of it)"""
            key = sequence.id, shape.budget if shape.branches else 0
            if key not in gains:
                gains[key] = self._records.of(sequence.request.method, shape).coverage, expected(self._rates(sequence, shape))
            share, by_length = gains[key]
            return share, by_length[shape.length]

        def speed(shape: Shape) -> float:
            tokens, nobody = float(batch), 1.0
            for sequence in open_:
                share, accepted = gain(sequence, _allowed(sequence, shape))
                tokens, nobody = tokens + share * accepted, nobody * (1 - share)
            plain = self._target.seconds(batch, 1 + fixed, context)
            drafting = self._target.seconds(batch, 1 + max(shape.budget, fixed), context)
            own = sum(time.seconds(batch, shape, context) for time in times)
            return tokens / (nobody * plain + (1 - nobody) * drafting + own)

        largest = max(sequence.request.tree_budget for sequence in open_)
        if self._current.budget > max(largest, self._current.length):
            self._current = Shape.chain(self._current.length)  # those who allowed the tree have left
        best = max(self._shapes(largest), key=speed)
        if speed(best) > HYSTERESIS * speed(self._current):
            self._current = best
        return self._current

    def _rates(self, sequence: Running, shape: Shape) -> list[float]:
        """Acceptance by depth. A sequence's own record weighs more the longer it is; where trees are allowed it has both kinds of draft,
        and says nothing of either."""
        rates, counter = self._records.of(sequence.request.method, shape).rates, sequence.counter
        if sequence.request.tree_budget:
            return rates
        for position, (accepted, reached) in enumerate(zip(counter.accepted_at, counter.reached_at, strict=True)):
            rates[position] = (accepted + OWN_WEIGHT * rates[position]) / (reached + OWN_WEIGHT)
        return rates


def _allowed(sequence: Running, shape: Shape) -> Shape:
    """What ``sequence`` may have of ``shape``."""
    budget = max(shape.length, min(shape.budget, sequence.request.tree_budget))
    return shape if budget == shape.budget else Shape(shape.length, budget)
