"""What the target's passes are taken to cost is what they take, also where the machine that built was busy at the wrong moment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from toy_engine import MAX_STEP, ToyModel, Toys, invariant, toy_entry, toys

from specbuild.bundle import StepCost
from specbuild.runtime.draft import Draft
from specbuild.runtime.proposers.base import Ask, Proposer
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.step_times import StepTimes
from specbuild.runtime.target_times import TargetTimes

__all__ = ["toys"]


def times(seconds: float) -> StepTimes:
    return StepTimes([StepCost(batch=1, step=step, context=0, seconds=seconds) for step in (1, 8)])


def test_before_any_pass_the_target_takes_what_was_measured() -> None:
    assert [TargetTimes(times(0.25), 8).seconds(batch, step, 0) for batch in (1, 3) for step in (1, 8)] == pytest.approx([0.25] * 4)


def test_what_passes_take_holds_for_others_about_as_wide_and_less_for_other_batches() -> None:
    target = TargetTimes(times(0.25), 8)
    for _ in range(300):
        target.observe(1, 1, 0, 0.4)
        target.observe(1, 8, 0, 0.25)
    assert target.seconds(1, 1, 0) == pytest.approx(0.4, rel=0.05)
    assert target.seconds(1, 8, 0) == pytest.approx(0.25, rel=0.05)
    assert 0.25 < target.seconds(1, 4, 0) < target.seconds(1, 2, 0) < 0.4
    assert target.seconds(2, 1, 0) == pytest.approx(0.4, rel=0.1)


def test_of_passes_of_one_width_alone_nothing_is_concluded_but_that_all_take_about_as_much_longer() -> None:
    """A machine that is slower throughout: what is never seen must not seem cheap."""
    target = TargetTimes(times(0.25), 8)
    for _ in range(300):
        target.observe(1, 1, 0, 0.4)
    assert [target.seconds(1, step, 0) for step in (1, 2, 4, 8)] == pytest.approx([0.4] * 4, rel=0.1)


def test_a_batch_of_its_own_weighs_more_than_all() -> None:
    target = TargetTimes(times(0.25), 8)
    for _ in range(300):
        target.observe(1, 1, 0, 0.4)
        target.observe(4, 1, 0, 0.2)
    assert target.seconds(1, 1, 0) == pytest.approx(0.4, rel=0.05)
    assert target.seconds(4, 1, 0) == pytest.approx(0.2, rel=0.05)
    assert target.seconds(8, 1, 0) == pytest.approx(0.3, rel=0.05)


def test_trees_cost_what_trees_take() -> None:
    target = TargetTimes(times(0.25), 8)
    for _ in range(300):
        target.observe(1, 8, 0, 0.25)
        target.observe(1, 8, 0, 0.4, trees=True)
    assert target.seconds(1, 8, 0) == pytest.approx(0.25, rel=0.05)
    assert target.seconds(1, 8, 0, trees=True) == pytest.approx(0.4, rel=0.05)


def test_no_pass_of_the_target_is_taken_to_cost_more_than_twice_what_was_measured_nor_less_than_half() -> None:
    fast, disturbed = TargetTimes(times(0.25), 8), TargetTimes(times(0.25), 8)
    for _ in range(300):
        fast.observe(1, 2, 0, 1e-5)
        disturbed.observe(1, 2, 0, 50.0)
    assert fast.seconds(1, 2, 0) == pytest.approx(0.125, rel=0.1)
    assert disturbed.seconds(1, 2, 0) == pytest.approx(0.5, rel=0.1)


def test_a_pass_tells_of_the_one_that_it_was_padded_to() -> None:
    measured = [StepCost(batch=1, step=step, context=0, seconds=step) for step in (1, 2, 8)]
    target = TargetTimes(StepTimes(measured, toy_entry("target", ToyModel(), row_multiple=2).padded), 8)
    for _ in range(300):
        target.observe(1, 1, 0, 3.0)
    assert target.seconds(1, 2, 0) == target.seconds(1, 1, 0) == pytest.approx(3, rel=0.05)


class Right(Proposer):
    """Drafts what comes."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text = text

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft.chain(self.text[ask.sequence.context.output_length :][: ask.draft_len]) for ask in asks]


def tokens_a_pass(toys: Toys, monkeypatch: pytest.MonkeyPatch, narrow: float, wide: float) -> float:
    """Of the last of many answers, all drafts of which are right, where a pass takes a second however many tokens it has, and was measured
    as ``narrow`` with one, as ``wide`` with the most."""
    probe = invariant()
    costs = tuple(cost.model_copy(update={"seconds": narrow if cost.step == 1 else wide}) for cost in probe.step_costs)
    clock = count()
    monkeypatch.setattr("specbuild.runtime.loop.perf_counter", lambda: next(clock))
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, speculation="off")
    text = toys.generator().generate([[1, 2, 3]], params)[0].token_ids
    generator = toys.generator(interactive=True, proposers={"right": Right(text)}, probe=probe.model_copy(update={"step_costs": costs}))
    for _ in range(40):
        last = generator.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, speculation="right"))[0]
        assert last.token_ids == text
    return last.stats.mean_acceptance_length


def test_speculation_is_not_off_for_good_where_plain_passes_were_measured_too_quick(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokens_a_pass(toys, monkeypatch, narrow=0.5, wide=4.5) >= 2
    assert tokens_a_pass(toys, monkeypatch, narrow=1.0, wide=1.0) == MAX_STEP
