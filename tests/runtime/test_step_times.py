"""What passes cost between the measured points, and what drafting costs beyond its passes."""

from __future__ import annotations

import pytest
from toy_engine import ToyModel, toy_entry

from specbuild.bundle import StepCost
from specbuild.runtime.draft import Shape
from specbuild.runtime.draft_times import DraftTimes
from specbuild.runtime.step_times import StepTimes


def times(seconds: float) -> StepTimes:
    return StepTimes([StepCost(batch=1, step=step, context=0, seconds=seconds) for step in (1, 8)])


def test_a_step_costs_what_the_one_does_that_it_is_padded_to() -> None:
    """Rows by twos: one sequence has an even number of tokens in every pass, two sequences any."""
    costs = [StepCost(batch=b, step=s, context=0, seconds=b * (s + s % 2 if b == 1 else s)) for b in (1, 2) for s in (1, 2, 4, 7)]
    passes = StepTimes(costs, toy_entry("target", ToyModel(), row_multiple=2).padded)
    assert [passes.seconds(1, step, 0) for step in range(1, 9)] == [2, 2, 4, 4, 6, 6, 8, 8]
    assert [passes.seconds(2, step, 0) for step in range(1, 8)] == [2, 4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize(("multiple", "batch", "padded"), [(1, 1, 5), (2, 1, 6), (2, 2, 5), (2, 3, 6), (4, 2, 6), (4, 4, 5), (4, 1, 8)])
def test_a_pass_is_padded_no_further_than_its_rows_need(multiple: int, batch: int, padded: int) -> None:
    assert toy_entry("target", ToyModel(), row_multiple=multiple).padded(5, batch) == padded


def test_before_any_draft_passes_cost_what_was_measured() -> None:
    assert [DraftTimes(times(0.25)).seconds(1, Shape.chain(length), 0) for length in (0, 1, 4)] == pytest.approx([0, 0.25, 1])


def test_drafts_cost_what_they_took() -> None:
    """0.4 beside 0.55 a pass, where a pass was measured at 0.25: chains of other lengths follow."""
    drafts = DraftTimes(times(0.25))
    for _ in range(200):
        for tokens in (1, 2, 3):
            drafts.observe(1, tokens, 0, 0.4 + 0.55 * tokens)
    assert [drafts.thinking(1, tokens, 0) for tokens in (0, 1, 2.5, 5)] == pytest.approx([0, 0.95, 1.775, 3.15], rel=0.02)
    assert drafts.next(1, 0) == pytest.approx(0.55, rel=0.02)


def test_drafts_that_are_all_alike_tell_what_they_take_together() -> None:
    drafts = DraftTimes(times(0.25))
    for _ in range(300):
        drafts.observe(1, 2, 0, 0.8)
    assert drafts.thinking(1, 2, 0) == pytest.approx(0.8, rel=0.02)


def test_no_draft_is_taken_to_cost_a_hundredth_of_what_was_measured_nor_a_hundred_times_as_much() -> None:
    fast, disturbed = DraftTimes(times(0.25)), DraftTimes(times(0.25))
    for _ in range(300):
        fast.observe(1, 2, 0, 0.01)
        disturbed.observe(1, 2, 0, 50.0)
    assert fast.thinking(1, 2, 0) == pytest.approx(0.25)
    assert disturbed.thinking(1, 2, 0) <= 2.5


def test_heads_that_draft_all_tokens_at_once_pay_for_one_pass() -> None:
    drafts = DraftTimes(times(0.25), at_once=True)
    assert [drafts.thinking(1, tokens, 0) for tokens in (0, 1, 4)] == pytest.approx([0, 0.25, 0.25])
    assert drafts.next(1, 0) == 0


def test_trees_cost_what_they_took_beside_chains() -> None:
    """Three times what passes of as many tokens say: nodes are chosen among many. Chains do not."""
    drafts, tree = DraftTimes(times(0.25)), Shape(2, 8)
    before = drafts.seconds(1, tree, 0)
    for _ in range(300):
        drafts.observe_tree(1, tree, 0, 3 * before)
    assert drafts.seconds(1, tree, 0) == pytest.approx(3 * before, rel=0.02)
    assert drafts.seconds(1, Shape(3, 9), 0) == pytest.approx(3 * DraftTimes(times(0.25)).seconds(1, Shape(3, 9), 0), rel=0.02)
    assert drafts.seconds(1, Shape.chain(2), 0) == pytest.approx(0.5)
