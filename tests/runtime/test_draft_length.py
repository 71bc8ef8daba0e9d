"""The chosen draft length is the one that emits most a second, and changes its mind both ways."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specbuild.bundle import StepCost
from specbuild.runtime.acceptance_record import Record
from specbuild.runtime.draft import NOTHING, Draft, Shape
from specbuild.runtime.draft_length import LATEST, TRIAL, TRY_AGAIN, DraftLength
from specbuild.runtime.draft_times import DraftTimes
from specbuild.runtime.ground import Ground
from specbuild.runtime.request import Request
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.stats import RequestCounter
from specbuild.runtime.step_times import StepTimes

LONGEST = 7


def times(first: float, each: float) -> StepTimes:
    """A pass of S tokens for B sequences takes first + each · B · S."""
    return StepTimes(
        [StepCost(batch=b, step=s, context=c, seconds=first + each * b * s) for b in (1, 8) for s in (1, LONGEST + 1) for c in (100, 1000)]
    )


def sequence(number: int = 0, method: str = "ngram", fixed: bool = False, tree_budget: int = 0) -> Any:
    request = Request(number, (1,), SamplingParams(), 0, method, 4, draft_len_fixed=fixed, tree_budget=tree_budget)
    return SimpleNamespace(id=number, tokens=[1] * 200, request=request, counter=RequestCounter(200))


def settled(chooser: DraftLength, running: list[Any], rate: float, rounds: int = 400) -> int:
    """The length chosen after many rounds in which every ``rate``-th… share of positions is accepted, spread evenly."""
    owed, chosen = 0.0, 0
    for _ in range(rounds):
        for one in running:
            shape = chooser.choose(running)[one.id]
            chosen = shape.length
            accepted = 0
            while accepted < chosen:
                owed += rate
                if owed < 1:
                    break
                owed -= 1
                accepted += 1
            failed = accepted < chosen
            chooser.observe(one, shape, chosen, accepted, failed)
            one.counter.observe(emitted=accepted + 1, drafted=chosen, accepted=accepted, failed=failed)
    return chosen


def test_times_are_linear_between_what_was_measured() -> None:
    measured = times(first=4.0, each=1.0)
    assert measured.seconds(1, 1, 100) == 5.0
    assert measured.seconds(3, 4, 500) == pytest.approx(16.0)
    assert measured.seconds(20, 30, 5000) == measured.seconds(8, 8, 1000)


def test_cheap_tokens_that_are_accepted_are_drafted_to_the_longest() -> None:
    assert settled(DraftLength(LONGEST, times(1.0, 0.01), {}), [sequence()], rate=0.95) == LONGEST


def test_nothing_is_drafted_where_nothing_is_accepted() -> None:
    """But for one token now and then, ever more rarely."""
    chooser, one = DraftLength(LONGEST, times(1.0, 0.2), {}), sequence()
    settled(chooser, [one], rate=0.0)
    later = [chooser.choose([one])[0].length for _ in range(6 * LATEST)]
    assert set(later) == {0, 1}
    tries = np.flatnonzero(later)
    assert TRY_AGAIN < tries[1] - tries[0] <= LATEST
    assert set(np.diff(tries)[1:]) == {LATEST}


def test_a_draft_engine_that_costs_as_much_as_the_target_is_not_asked() -> None:
    slow = times(1.0, 0.1)
    chooser = DraftLength(LONGEST, slow, {"draft_model": DraftTimes(slow)})
    assert settled(chooser, [sequence(method="draft_model")], rate=0.9) in (0, 1)
    assert chooser._current == Shape.chain(0)


def test_a_crowded_pass_gets_shorter_drafts() -> None:
    lengths = {
        batch: settled(DraftLength(LONGEST, times(4.0, 1.0), {}), [sequence(i) for i in range(batch)], rate=0.8, rounds=100)
        for batch in (1, 8)
    }
    assert lengths[8] < lengths[1]


def test_it_changes_back_when_acceptance_comes_back() -> None:
    chooser = DraftLength(LONGEST, times(1.0, 0.15), {})
    assert settled(chooser, [sequence()], rate=0.0) <= 1
    assert settled(chooser, [sequence()], rate=0.95, rounds=3000) >= 3


def grounds_settle(chooser: DraftLength, running: list[Any], rates: dict[Ground, float], rounds: int = 600) -> dict[Ground, set[int]]:
    """Lengths chosen on each ground in the last 100 rounds, where drafts rest on one after the other and are accepted at its rate."""
    random, chosen = np.random.default_rng(1), []
    for turn in range(rounds):
        grounds = {one.id: list(rates)[(turn + one.id) % len(rates)] for one in running}
        shapes = chooser.choose(running, grounds)
        for one in running:
            length = shapes[one.id].length
            accepted = run(random.random(length) < rates[grounds[one.id]])
            chooser.observe(one, shapes[one.id], length, accepted, accepted < length)
            chosen.append((grounds[one.id], length))
    last = chosen[-100 * len(running) :]
    return {ground: {length for given, length in last if given == ground} for ground in rates}


def test_a_draft_is_as_long_as_what_it_rests_on_is_worth() -> None:
    weak, strong = Ground(copied=True, match=1), Ground(copied=True, match=8)
    lengths = grounds_settle(DraftLength(LONGEST, times(1.0, 0.1), {}), [sequence()], {weak: 0.05, strong: 0.97})
    assert min(lengths[strong]) >= 6
    assert lengths[weak] <= {0, 1}


def test_where_there_is_nothing_to_draft_nothing_is_tried() -> None:
    chooser = DraftLength(LONGEST, times(1.0, 0.01), {})
    shapes = [chooser.choose([sequence()], {0: None})[0] for _ in range(2 * TRY_AGAIN)]
    assert set(shapes) == {NOTHING}
    assert chooser.choose([sequence()], {0: Ground(copied=True, match=2)})[0].length > 0


def chain(*confidence: float) -> Draft:
    return Draft(tuple(range(len(confidence))), tuple(range(-1, len(confidence) - 1)), confidence=confidence)


def cut(chooser: DraftLength, confidence: tuple[float, ...], **of: Any) -> int:
    """Tokens that stay of a draft."""
    one = sequence(**of)
    chooser.choose([one])
    (draft,) = chooser.cut([one], [chain(*confidence)])
    assert draft.tokens == tuple(range(len(draft)))
    return len(draft)


@pytest.mark.parametrize(
    ("confidence", "stay"), [((0.95, 0.9, 0.05), 2), ((0.9, 0.9, 0.9), 3), ((0.1, 0.95), 0), ((0.6, 0.2, 0.2), 1), ((0.5, 0.99, 0.99), 3)]
)
def test_what_its_proposer_doubts_is_not_verified_where_that_costs(confidence: tuple[float, ...], stay: int) -> None:
    """A token more costs a fifth of a pass. By hand, for the last but one: E / t is 1 / 1.2, 1.6 / 1.4, 1.72 / 1.6, 1.744 / 1.8."""
    assert cut(DraftLength(LONGEST, times(1.0, 0.2), {}), confidence) == stay
    assert cut(DraftLength(LONGEST, times(1.0, 0.0), {}), confidence) == len(confidence), "where it is free all is"
    assert cut(DraftLength(LONGEST, times(1.0, 0.2), {}), confidence, fixed=True) == len(confidence)


@pytest.mark.parametrize(("confidence", "right"), [(0.95, False), (0.05, True)])
def test_a_confidence_is_worth_what_became_of_it(confidence: float, right: bool) -> None:
    chooser, one = DraftLength(LONGEST, times(1.0, 0.3), {}), sequence()
    assert cut(chooser, (confidence,)) == (0 if right else 1)
    for _ in range(60):
        chooser.learn(one, chain(confidence, confidence), int(right), not right)
    assert cut(chooser, (confidence,)) == (1 if right else 0)
    assert cut(chooser, (1 - confidence,)) == (0 if 1 - confidence < 0.5 else 1), "another confidence is another matter"


def test_drafts_are_cut_at_what_is_best_for_all_of_a_pass() -> None:
    chooser = DraftLength(LONGEST, times(4.0, 1.0), {})
    running = [sequence(number) for number in range(4)]
    chooser.choose(running)
    sure, doubtful = chain(0.95, 0.95, 0.95), chain(0.2, 0.2, 0.2)
    assert [len(draft) for draft in chooser.cut(running, [sure, doubtful, doubtful, doubtful])] == [0, 0, 0, 0]
    assert [len(draft) for draft in chooser.cut(running, [sure, sure, sure, doubtful])] == [3, 3, 3, 3]
    assert [len(draft) for draft in chooser.cut(running, [sure, Draft.chain((1, 2, 3)), doubtful, doubtful])] == [3, 3, 3, 3], (
        "beside a copy that is verified anyhow it is free"
    )


def thinks(chooser: DraftLength, running: list[Any], rates: dict[float, float], rounds: int = 400) -> tuple[list[int], list[int]]:
    """(tokens drafted, tokens verified) of each sequence in each of the last 200 rounds, where a proposer is as sure of each token as
    chance will have it and as often right as ``rates`` say, confidence by confidence."""
    random, drafted, verified = np.random.default_rng(2), [], []
    for _ in range(rounds):
        shapes = chooser.choose(running)
        drafts = []
        for one in running:
            sure, least = list[float](), chooser.least(one, len(running), shapes[one.id].length)
            while len(sure) < shapes[one.id].length and (not sure or least is None or np.prod(sure) >= least[len(sure) - 1]):
                sure.append(float(random.choice(list(rates))))
            drafts.append(chain(*sure) if sure else Draft.EMPTY)
        drafted += map(len, drafts)
        for one, draft in zip(running, chooser.cut(running, drafts), strict=True):
            accepted = run(random.random(len(draft)) < [rates[sure] for sure in draft.confidence or ()])
            chooser.observe(one, shapes[one.id], len(draft), accepted, accepted < len(draft))
            chooser.learn(one, draft, accepted, accepted < len(draft))
            verified.append(len(draft))
    return drafted[-200 * len(running) :], verified[-200 * len(running) :]


@pytest.mark.parametrize("batch", [1, 4])
def test_a_model_that_knows_when_it_is_right_is_asked_and_cut(batch: int) -> None:
    """Half of its tokens are right nine times of ten, the others once, and it knows which: fixed lengths would not pay."""
    rates, target = {0.8: 0.9, 0.3: 0.1}, times(1.0, 0.3 / batch)
    chooser = DraftLength(LONGEST, target, {"mtp": DraftTimes(times(0.05, 0.0))})
    drafted, verified = thinks(chooser, [sequence(number, "mtp") for number in range(batch)], rates)
    assert drafted.count(0) < 20, "it is asked"
    if batch == 1:
        assert 60 < verified.count(0) < 140, "half of the drafts begin with a doubt"
        assert max(verified) >= 3


def test_a_model_that_is_dear_is_not_asked_however_sure() -> None:
    chooser = DraftLength(LONGEST, times(1.0, 0.1), {"draft_model": DraftTimes(times(1.0, 0.1))})
    drafted, _ = thinks(chooser, [sequence(0, "draft_model")], {0.9: 0.9})
    assert drafted.count(0) >= 190, "but for a try now and then"


def test_a_model_that_would_have_to_catch_up_is_tried_with_a_new_sequence() -> None:
    chooser = DraftLength(LONGEST, times(1.0, 0.1), {"draft_model": DraftTimes(times(1.0, 0.1))})
    old, new = sequence(0, "draft_model"), sequence(1, "draft_model")
    thinks(chooser, [old], {0.9: 0.0})
    old.counter.observe(emitted=1, drafted=0, accepted=0, failed=False)
    assert {chooser.choose([old])[0] for _ in range(LATEST + 1)} == {NOTHING}
    assert chooser.choose([old, new]) == {0: NOTHING, 1: Shape.chain(LONGEST)}


def test_a_model_that_costs_little_is_tried_for_each_sequence_whatever_others_brought() -> None:
    """It brought the first nothing. The second it is tried for, for a while, then now and then, and it stays once it pays."""
    chooser = DraftLength(LONGEST, times(1.0, 0.1), {"mtp": DraftTimes(times(0.1, 0.0))})
    drafted, _ = thinks(chooser, [sequence(0, "mtp")], {0.5: 0.0})
    assert 10 <= 200 - drafted.count(0) <= 15, "every 16 rounds"
    new = sequence(1, "mtp")
    drafted, _ = thinks(chooser, [new], {0.5: 0.0}, rounds=TRIAL + 5)
    assert 4 <= drafted.count(0) <= 5
    drafted, _ = thinks(chooser, [new], {0.9: 1.0})
    assert drafted.count(0) == 0


def test_who_fixed_a_length_keeps_it_and_off_is_left_alone() -> None:
    chooser = DraftLength(LONGEST, times(1.0, 0.01), {})
    running = [sequence(0, fixed=True), sequence(1, method="off"), sequence(2)]
    assert set(chooser.choose(running)) == {2}


def run(kept: NDArray[np.bool_]) -> int:
    """How many are kept before the first that is not."""
    return int(np.argmin([*kept, False]))


def trees_settle(chooser: DraftLength, rates: dict[bool, float], rounds: int = 400) -> Counter[Shape]:
    """The shapes chosen for a request that allows trees, where trees and chains are accepted at rates of their own; the last 200."""
    one, random, chosen = sequence(tree_budget=LONGEST), np.random.default_rng(0), []
    for _ in range(rounds):
        shape = chooser.choose([one])[0]
        accepted = run(random.random(shape.length) < rates[shape.branches])
        chooser.observe(one, shape, shape.budget, accepted, accepted < shape.length)
        if shape.branches:
            first = run(random.random(accepted) < rates[False] / rates[True])
            chooser.observe(one, Shape.chain(shape.length), shape.length, first, first < shape.length)
        one.counter.observe(emitted=accepted + 1, drafted=shape.budget, accepted=accepted, failed=accepted < shape.length)
        chosen.append(shape)
    return Counter(chosen[-200:])


def test_a_tree_grows_to_its_budget_where_passes_are_free() -> None:
    chosen = trees_settle(DraftLength(LONGEST, times(1.0, 0.001), {"ngram": DraftTimes(times(0.1, 0.001))}), {False: 0.5, True: 0.75})
    (shape, count), *_ = chosen.most_common()
    assert shape.budget == LONGEST > shape.length > 1
    assert count > 150


def test_a_tree_falls_back_to_a_chain_where_wide_passes_cost() -> None:
    """Or where its other branches bring nothing; and loses next to nothing by trying."""
    for each, rates in [(0.5, {False: 0.7, True: 0.8}), (0.15, {False: 0.7, True: 0.7})]:
        chosen = trees_settle(DraftLength(LONGEST, times(1.0, each), {}), rates, rounds=800)
        assert sum(count for shape, count in chosen.items() if shape.budget == shape.length) >= 195


def test_who_allows_no_tree_has_its_chain_beside_one() -> None:
    chooser = DraftLength(LONGEST, times(1.0, 0.001), {"ngram": DraftTimes(times(0.1, 0.001))})
    trees_settle(chooser, {False: 0.5, True: 0.75})
    running = [sequence(0, tree_budget=LONGEST), sequence(1), sequence(2, tree_budget=4)]
    one, other, small = chooser.choose(running).values()
    assert one.budget > one.length == other.length == other.budget == small.length
    assert small.budget == max(4, small.length)
    assert chooser.choose(running[1:2])[1] == other, "those who allowed the tree have left"


@given(st.lists(st.tuples(st.integers(0, LONGEST), st.booleans()), max_size=60))
def test_rates_stay_between_0_and_1(rounds: list[tuple[int, bool]]) -> None:
    record = Record(LONGEST)
    for accepted, failed in rounds:
        record.observe(LONGEST, accepted, failed and accepted < LONGEST)
    assert all(0 <= rate <= 1 for rate in record.rates)
    assert 0 <= record.coverage <= 1
