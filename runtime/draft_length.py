"""How many tokens to draft, and whether as a tree: what emits most a second, by what passes cost and what was accepted so far.

With aᵢ the acceptance at depth i (given that i was reached) of drafts that rest on the like (what is copied after a match of nine tokens is
right twice as often as after one), c the share of rounds in which there is anything to draft,

    E(k) = 1 + c · Σ_{i≤k} Π_{j≤i} aⱼ          tokens that a sequence emits in a round
    t(k) = T_target(B, n + 1) + k · T_draft(B, n/k)   seconds that the round takes where anybody drafts (Medusa: one draft pass)

and the depth k and the number of tokens n (k in a chain, the budget of a tree) maximise Σ E / t over the sequences of the batch, which
share the pass. k = 0 is a choice like the others: it is plain decoding. This is the speed-up of 2211.17192 with measured times in place
of its cost ratio; T(B, 1)/T(B, n + 1) is known as target efficiency.

A model that says how sure it is of its tokens drafts as far as it is sure enough, or not at all, as rounds so drafted paid so far; and
its draft is cut where the chances of just these tokens say that verifying more would cost more than it brings.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType

from .acceptance_record import expected
from .calibration import Outcome
from .draft import NOTHING, Draft, Shape
from .draft_times import DraftTimes
from .experience import Experience
from .ground import Ground
from .request import Running
from .step_times import StepTimes
from .target_times import TargetTimes

HYSTERESIS = 1.03
"""A new shape must promise so much more than the current one."""
TRY_AGAIN, LATEST = 32, 256
"""Rounds without drafts after which one is tried again, to see whether it still does not pay, and the most. Each try in which nothing was
accepted doubles them: a model that never pays must not cost much, and has to read all that came since."""
SEVERAL, CHEAP = 8, 0.03
"""Reading a token at a pace of so many a pass is cheap where it costs no more than this share of a target pass."""
TRIAL, MODEST = 16, 0.25
"""Rounds in which each new sequence is drafted for, and after as many without drafts again, where a draft costs no more than this share
of a target pass."""
CONTEXT_STEP = 64
"""Contexts are rounded to multiples of this many tokens."""
SURE = 0.9
"""Of a chain that is at least so likely another token is always drafted: how dear that is decides whether there is a draft at all."""
DEEPEST = 10
"""Levels of a tree that are worth weighing."""

Least = tuple[float, ...]
"""See ``Ask.least``."""
Grounds = Mapping[Hashable, Ground | None]
"""Sequence → what its draft would rest on; None: there is nothing to draft. Of one that is not in it nothing is known."""


class DraftLength:
    """Chooses one shape a round for all that leave it open; who allows no tree of that size gets the largest that it allows."""

    def __init__(self, longest: int, target: StepTimes, drafts: Mapping[str, DraftTimes]) -> None:
        """``drafts``: method → times of its own engine, where it has one."""
        self._longest = longest
        self._target, self._drafts = TargetTimes(target, longest + 1), drafts
        self._experience = Experience(longest)
        self._grounds: Grounds = {}
        """Of this round."""
        self._drafted: dict[Hashable, int] = {}
        """Tokens of this round's drafts before they were cut, of those."""
        self._current = Shape.chain(min(4, longest))
        self._idle_rounds, self._patience, self._trying = 0, TRY_AGAIN, False

    def choose(self, running: Sequence[Running], grounds: Grounds = MappingProxyType({})) -> dict[Hashable, Shape]:
        """Shape of the draft of each sequence that speculates and did not fix its own."""
        drafting = [sequence for sequence in running if sequence.request.method != "off"]
        self._grounds = {sequence.id: grounds.get(sequence.id, Ground()) for sequence in drafting}
        self._experience.keep(self._grounds)
        left_open = [sequence for sequence in drafting if not sequence.request.draft_len_fixed]
        open_ = [sequence for sequence in left_open if self._grounds[sequence.id] is not None]
        chosen = dict.fromkeys((sequence.id for sequence in left_open), NOTHING)
        if not open_:
            return chosen
        fixed = max((sequence.request.shape.budget for sequence in drafting if sequence.request.draft_len_fixed), default=0)
        shape, think = self._best(open_, len(running), fixed)
        self._experience.pass_by(shape)
        if shape.length == 0 and not think:
            self._idle_rounds += 1
            again = [one for one in open_ if self._to_be_tried(one, len(running))]
            open_ = [one for one in open_ if one in again or self._on_trial(one, len(running))]
            shape, think, self._trying = Shape.chain(1), True, bool(again)
            if again:
                self._idle_rounds, self._patience = 0, min(LATEST, 2 * self._patience)
        else:
            self._idle_rounds, self._patience, self._trying = 0, TRY_AGAIN, False
        return chosen | {one.id: self._given(one, shape, think) for one in open_}

    def least(self, sequence: Running, batch: int, length: int) -> Least | None:
        """See ``Ask``, of a draft of ``length`` tokens at most. To go on from n costs passes of the model and a wider one of the target.
        If all n are right, j more bring a + a² + … + aʲ, with a the acceptance of those that were drafted after others so far."""
        if sequence.request.draft_len_fixed:
            return None
        context, times, lengths = self._context([sequence]), self._times(sequence), range(1, length)
        if times is None or not lengths:
            return (0.0,) * len(lengths)
        next_, plain = times.next(batch, context), self._target.seconds(batch, 1, context)
        verifying = [self._target.seconds(batch, 1 + length, context) / plain for length in range(self._longest + 1)]
        gains = expected([self._experience.going_on(sequence.request.method)] * self._longest)

        def from_(length: int) -> float:
            return min(
                (more * next_ / plain + verifying[length + more] - verifying[length]) / gains[more]
                for more in range(1, self._longest - length + 1)
            )

        return tuple(min(SURE, from_(length)) for length in lengths)

    def clock(self, running: Sequence[Running], asked: Sequence[Shape], drafts: Sequence[Draft], seconds: Mapping[str, float]) -> None:
        """What a round's drafts took each method, of ``asked`` shapes. Where one has chains and trees, that tells of neither."""
        context = self._context(running)
        for method, times in self._drafts.items():
            own = [(shape, draft) for one, shape, draft in zip(running, asked, drafts, strict=True) if self._times(one) is times]
            tokens = max((len(draft) for _, draft in own), default=0)
            trees = [shape for shape, _ in own if shape.branches]
            if tokens and not trees:
                times.observe(len(running), tokens, context, seconds[method])
            elif tokens and len(trees) == len(own):
                times.observe_tree(len(running), max(trees, key=lambda shape: shape.budget), context, seconds[method])

    def clock_target(self, running: Sequence[Running], drafts: Sequence[Draft], seconds: float) -> None:
        """What it took to verify them. Where layers are shared, part of it was drafting: that tells nothing."""
        if not any(times.shared for one, draft in zip(running, drafts, strict=True) if len(draft) and (times := self._times(one))):
            trees = not all(draft.is_chain for draft in drafts)
            self._target.observe(len(running), 1 + max(map(len, drafts)), self._context(running), seconds, trees=trees)

    def cut(self, running: Sequence[Running], drafts: Sequence[Draft]) -> list[Draft]:
        """``drafts`` without what would cost more to verify than it brings, as far as their proposers say how sure they are.

        They are cut at one length, which maximises Σ E / t as in ``choose``, with E of just these tokens and what was spent on them in t.
        """
        said = {s.id: (s, d.confidence) for s, d in zip(running, drafts, strict=True) if d.confidence is not None and self._open(s)}
        self._drafted = {owner: len(confidence) for owner, (_, confidence) in said.items()}
        if not said:
            return list(drafts)
        sure = {owner: expected(self._experience.chances(one.request.method, confidence)) for owner, (one, confidence) in said.items()}
        others = [(one, len(draft)) for one, draft in zip(running, drafts, strict=True) if one.id not in said and len(draft)]
        batch, widest, context = len(running), max((length for _, length in others), default=0), self._context(running)
        base = batch + sum(expected(self._rates(one, Shape.chain(0)))[min(length, self._longest)] for one, length in others)
        longest = max(self._drafted.values())
        models = {times for one, _ in said.values() if (times := self._times(one)) is not None}
        spent = sum(times.thinking(batch, longest, context) for times in models)

        def speed(length: int) -> float:
            tokens = base + sum(gains[min(length, len(gains) - 1)] for gains in sure.values())
            return tokens / (self._target.seconds(batch, 1 + max(widest, length), context) + spent)

        best = max(range(longest, -1, -1), key=speed)
        return [draft.cut(best) if one.id in sure else draft for one, draft in zip(running, drafts, strict=True)]

    def learn(self, sequence: Running, draft: Draft, accepted: int, failed: bool) -> None:
        """How sure a chain was, and what became of it."""
        if sequence.id not in self._drafted:
            return
        self._experience.learn(sequence, self._ground(sequence), draft, self._drafted[sequence.id], accepted, failed)

    def observe(self, sequence: Running, asked: Shape, drafted: int, accepted: int, failed: bool) -> None:
        """What became of a round's draft; ``failed``: it went on after the accepted tokens and was rejected there."""
        ground = self._grounds.get(sequence.id)
        if self._trying and accepted:
            self._patience = TRY_AGAIN
            if self._is_modest(sequence, 1):  # once more: where one token was right the next ones often are
                self._idle_rounds = TRY_AGAIN
        if asked.length and ground is not None and sequence.id not in self._drafted:
            self._experience.observe(sequence, ground, asked, drafted, accepted, failed)

    def _given(self, sequence: Running, shape: Shape, think: bool) -> Shape:
        """What comes of the choice for one."""
        if self._outcome(sequence) is None or (sequence.request.tree_budget and not think):
            return _allowed(sequence, shape)
        return Shape.chain(self._longest) if think else NOTHING

    def _shapes(self, largest: int) -> Iterator[Shape]:
        """Every chain; trees of the ``largest`` budget and of half of it."""
        for length in range(self._longest + 1):
            yield Shape.chain(length)
        for budget in {largest, largest // 2}:
            for length in range(1, min(budget, DEEPEST + 1)):
                yield Shape(length, budget)

    def _best(self, open_: Sequence[Running], batch: int, fixed: int) -> tuple[Shape, bool]:
        """The shape for all but those that say how sure they are, and whether those are to draft as far as they are; else the shape is also
        for those of them that may have a tree."""
        context = self._context(open_)
        thinking = {one.id: outcome for one in open_ if (outcome := self._outcome(one)) is not None}
        others = [one for one in open_ if one.id not in thinking]
        shaped = {True: others, False: [one for one in open_ if one.id not in thinking or one.request.tree_budget]}
        models = {think: {times for one in some if (times := self._times(one)) is not None} for think, some in shaped.items()}
        gains: dict[tuple[Hashable, int], tuple[float, list[float]]] = {}

        def gain(sequence: Running, shape: Shape) -> tuple[float, float]:
            """(chance that there is a draft, tokens accepted of it)"""
            key = sequence.id, shape.budget if shape.branches else 0
            if key not in gains:
                gains[key] = self._experience.coverage(sequence, self._ground(sequence), shape), expected(self._rates(sequence, shape))
            share, by_length = gains[key]
            return share, by_length[shape.length]

        def speed(shape: Shape, think: bool) -> float:
            """Tokens a second."""
            tokens, nobody = float(batch), 1.0
            for sequence in shaped[think]:
                share, accepted = gain(sequence, _allowed(sequence, shape))
                tokens, nobody = tokens + share * accepted, nobody * (1 - share)
            own = sum(times.seconds(batch, shape, context) for times in models[think])
            widths = [(0, 1.0)]
            if think:
                tokens += sum(outcome.accepted for outcome in thinking.values())
                for one in open_:
                    if one.id in thinking and (times := self._times(one)) is not None:
                        own += times.thinking(batch, thinking[one.id].drafted, context) / len(thinking)
                widths = [(n, share / len(thinking)) for outcome in thinking.values() for n, share in outcome.verified()]
            for n, share in widths:
                own += share * nobody * self._target.seconds(batch, 1 + max(n, fixed), context)
                own += share * (1 - nobody) * self._target.seconds(batch, 1 + max(n, shape.budget, fixed), context, trees=shape.branches)
            return tokens / own

        largest = max(sequence.request.tree_budget for sequence in open_)
        if self._current.budget > max(largest, self._current.length):
            self._current = Shape.chain(self._current.length)  # those who allowed the tree have left
        choices = (False, True) if thinking else (False,)
        if not shaped[False]:
            return NOTHING, max(choices, key=lambda think: speed(NOTHING, think))
        best = max(itertools.product(self._shapes(largest), choices), key=lambda one: speed(*one))
        current = max(((self._current, think) for think in choices), key=lambda one: speed(*one))
        chosen = best if speed(*best) > HYSTERESIS * speed(*current) else current
        self._current = chosen[0]
        return chosen

    def _to_be_tried(self, sequence: Running, batch: int) -> bool:
        """Whether it is time to draft once where that did not pay. A model that has a text to catch up with for that is tried where it
        has none: with a sequence that begins."""
        times, context = self._times(sequence), self._context([sequence])
        # A token costs about this where several are read at a time.
        reading = 0.0 if times is None or times.shared else times.step.seconds(batch, SEVERAL, context) / SEVERAL
        cheap = reading <= CHEAP * self._target.seconds(batch, 1, context)
        patience = min(TRIAL, self._patience) if self._is_modest(sequence, batch) else self._patience
        return self._idle_rounds >= patience and (cheap or sequence.counter.rounds == 0)

    def _open(self, sequence: Running) -> bool:
        return sequence.request.method != "off" and not sequence.request.draft_len_fixed

    def _on_trial(self, sequence: Running, batch: int) -> bool:
        """Whether a sequence is too new to say that its drafts do not pay, where to see that costs little: what others' do says little."""
        outcome = self._outcome(sequence)
        return outcome is not None and outcome.seen < TRIAL and self._is_modest(sequence, batch)

    def _is_modest(self, sequence: Running, batch: int) -> bool:
        """Whether its draft of one token costs little."""
        times, context = self._times(sequence), self._context([sequence])
        if times is None:
            return False
        plain, two = (self._target.seconds(batch, step, context) for step in (1, 2))
        return times.thinking(batch, 1, context) + two - plain <= MODEST * plain

    def _outcome(self, sequence: Running) -> Outcome | None:
        """None: it has not said yet how sure it is."""
        return self._experience.outcome(sequence, self._ground(sequence))

    def _ground(self, sequence: Running) -> Ground:
        return self._grounds[sequence.id] or Ground()

    def _context(self, sequences: Sequence[Running]) -> int:
        return max(len(sequence.tokens) for sequence in sequences) // CONTEXT_STEP * CONTEXT_STEP

    def _times(self, sequence: Running) -> DraftTimes | None:
        """Of the engine that drafts for it; None: its draft is copied, or costs nothing that is known."""
        ground = self._grounds.get(sequence.id)
        return None if ground is None or ground.copied else self._drafts.get(sequence.request.method)

    def _rates(self, sequence: Running, shape: Shape) -> list[float]:
        return self._experience.rates(sequence, self._ground(sequence), shape)


def _allowed(sequence: Running, shape: Shape) -> Shape:
    """What ``sequence`` may have of ``shape``."""
    budget = max(shape.length, min(shape.budget, sequence.request.tree_budget))
    return shape if budget == shape.budget else Shape(shape.length, budget)
