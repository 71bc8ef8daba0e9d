"""How many tokens to draft: the length that emits most a second, by what passes cost and what was accepted so far.

With aᵢ the acceptance at position i (given that i was reached), c the share of rounds in which there is anything to draft,

    E(k) = 1 + c · Σ_{i≤k} Π_{j≤i} aⱼ          tokens that a sequence emits in a round
    t(k) = T_target(B, k + 1) + k · T_draft(B, 1)   seconds that the round takes where anybody drafts (Medusa: one draft pass)

and k maximises Σ E(k) / t(k) over the sequences of the batch, which share the pass. k = 0 is a choice like the others: it is
plain decoding. This is the speed-up of 2211.17192 with measured times in place of its cost ratio; T(B, 1)/T(B, k + 1) is known as
target efficiency.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from .request import Running
from .step_times import StepTimes

DECAY = 0.98
"""Of a method's counts at each observation: it remembers some fifty."""
PRIOR, PRIOR_WEIGHT = 0.6, 4.0
"""Acceptance that a method is credited with before anything is known, and how many observations that stands for."""
OWN_WEIGHT = 8.0
"""Observations that a method's rate stands for beside a sequence's own."""
HYSTERESIS = 1.03
"""A new length must promise so much more than the current one."""
TRY_AGAIN = 32
"""Rounds without drafts after which one token is drafted again, to see whether it still does not pay."""
CONTEXT_STEP = 64
"""Contexts are rounded to multiples of this many tokens."""


class MethodRecord:
    """Decayed counts of one method, over all requests."""

    def __init__(self, positions: int) -> None:
        self.reached = [0.0] * positions
        self.accepted = [0.0] * positions
        self.asked = 0.0
        self.drafted = 0.0

    def observe(self, drafted: int, accepted: int, failed: bool) -> None:
        """A round in which tokens were asked for."""
        self.asked = self.asked * DECAY + 1
        self.drafted = self.drafted * DECAY + (drafted > 0)
        for position in range(min(accepted + failed, len(self.reached))):
            self.reached[position] = self.reached[position] * DECAY + 1
            self.accepted[position] = self.accepted[position] * DECAY + (position < accepted)

    @property
    def coverage(self) -> float:
        """Share of rounds in which there was a draft."""
        return (self.drafted + PRIOR_WEIGHT) / (self.asked + PRIOR_WEIGHT)

    def rate(self, position: int) -> float:
        """Acceptance at ``position``; one never reached is taken to be like the one before it."""
        before = self.rate(position - 1) if position else PRIOR
        return (self.accepted[position] + PRIOR_WEIGHT * before) / (self.reached[position] + PRIOR_WEIGHT)


@dataclass(frozen=True)
class DraftTimes:
    """What a method's own passes cost."""

    step: StepTimes
    at_once: bool = False
    """One pass gives all tokens (Medusa heads), not one each."""

    def seconds(self, batch: int, length: int, context: int) -> float:
        """Seconds of drafting ``length`` tokens for each of ``batch`` sequences."""
        return self.step.seconds(batch, 1, context) * (min(length, 1) if self.at_once else length)


class DraftLength:
    """Chooses one length a round for all that leave it open."""

    def __init__(self, longest: int, target: StepTimes, drafts: Mapping[str, DraftTimes]) -> None:
        """``drafts``: method → times of its own engine, where it has one."""
        self._longest = longest
        self._target, self._drafts = target, drafts
        self._records: dict[str, MethodRecord] = defaultdict(lambda: MethodRecord(longest))
        self._current = min(4, longest)
        self._idle_rounds = 0

    def choose(self, running: Sequence[Running]) -> dict[Hashable, int]:
        """Draft length of each sequence that speculates and did not fix its own."""
        open_ = [sequence for sequence in running if sequence.request.method != "off" and not sequence.request.draft_len_fixed]
        if not open_:
            return {}
        fixed = max((s.request.draft_len for s in running if s.request.draft_len_fixed and s.request.method != "off"), default=0)
        length = self._best(open_, len(running), fixed)
        if length == 0:
            self._idle_rounds += 1
            if self._idle_rounds >= TRY_AGAIN:
                self._idle_rounds, length = 0, 1
        return {sequence.id: length for sequence in open_}

    def observe(self, sequence: Running, asked: int, drafted: int, accepted: int, failed: bool) -> None:
        """What became of a round's draft; ``failed``: it went on after the accepted tokens and was rejected there."""
        if asked:
            self._records[sequence.request.method].observe(drafted, accepted, failed)

    def _best(self, open_: Sequence[Running], batch: int, fixed: int) -> int:
        context = max(len(sequence.tokens) for sequence in open_) // CONTEXT_STEP * CONTEXT_STEP
        gains = [self._gains(sequence) for sequence in open_]
        covered = [self._records[sequence.request.method].coverage for sequence in open_]
        nobody = 1.0
        for share in covered:
            nobody *= 1 - share
        times = [self._drafts[method] for method in {sequence.request.method for sequence in open_} if method in self._drafts]

        def speed(length: int) -> float:
            tokens = batch + sum(share * gain[length] for share, gain in zip(covered, gains, strict=True))
            plain = self._target.seconds(batch, 1 + fixed, context)
            drafting = self._target.seconds(batch, 1 + max(length, fixed), context)
            own = sum(time.seconds(batch, length, context) for time in times)
            return tokens / (nobody * plain + (1 - nobody) * drafting + own)

        best = max(range(self._longest + 1), key=speed)
        if speed(best) > HYSTERESIS * speed(self._current):
            self._current = best
        return self._current

    def _gains(self, sequence: Running) -> list[float]:
        """Σ_{i≤k} Π_{j≤i} aⱼ for k = 0 … longest; a sequence's own record weighs more the longer it is."""
        record, counter = self._records[sequence.request.method], sequence.counter
        rates = []
        for position in range(self._longest):
            reached, accepted = (
                (counter.reached_at[position], counter.accepted_at[position]) if position < len(counter.reached_at) else (0, 0)
            )
            rates.append((accepted + OWN_WEIGHT * record.rate(position)) / (reached + OWN_WEIGHT))
        return [0.0, *accumulate(accumulate(rates, mul))]
