"""What measured runs are said to mean: exact ratios, their spread, and when to say "do not speculate"."""

from __future__ import annotations

import dataclasses

import pytest
from completions import completion

from specbuild.bench.measure import Run, Variant
from specbuild.bench.report import acceptance_by_position, plain_outputs, report, spread, verdict
from specbuild.runtime.generator import Completion

OFF, NGRAM = Variant("off", 0, 1), Variant("ngram", 4, 1)


def one(variant: Variant, group: int, task: str | None, answer: Completion) -> Run:
    return Run(variant, group, task, (group,), (answer,))


def pairs(*, tokens: tuple[int, ...] = (1, 2, 3, 4)) -> list[Run]:
    """Task a takes 1 s plainly and 0.5 s with n-grams; task b 3 s and 3.5 s."""
    return [
        one(OFF, 0, "a", completion(seconds=1.0, rounds=4, engine=0.9)),
        one(NGRAM, 0, "a", completion(seconds=0.5, rounds=2, engine=0.4, rates=(0.5, 1.0), reached=(2, 1))),
        one(NGRAM, 1, "b", completion(tokens, seconds=3.5, rounds=3, engine=3.2, rates=(0.25,), reached=(4,))),
        one(OFF, 1, "b", completion(seconds=3.0, rounds=4, engine=3.0)),
    ]


def test_a_row_a_task_and_all_closes_the_method() -> None:
    rows = report(pairs())
    assert [(row.variant.method, row.task) for row in rows] == [(m, t) for m in ("off", "ngram") for t in ("a", "b", "all")]
    assert [row.speedup for row in rows] == pytest.approx([1, 1, 1, 2, 3 / 3.5, 1])
    assert [row.tokens_per_second for row in rows] == pytest.approx([4, 4 / 3, 2, 8, 4 / 3.5, 2])
    assert [row.mean_acceptance_length for row in rows] == pytest.approx([1, 1, 1, 2, 4 / 3, 8 / 5])
    assert [row.overhead for row in rows] == pytest.approx([0.1, 0, 0.1 / 4, 0.2, 0.3 / 3.5, 0.4 / 4])
    assert all(row.identical for row in rows)
    assert rows[-1].acceptance_by_position == pytest.approx(((0.5 * 2 + 0.25 * 4) / 6, 1.0))
    assert [(row.speedup_low, row.speedup_high) for row in rows[:3]] == [(1, 1)] * 3, "plain decoding is compared with itself"
    assert (rows[-1].speedup_low, rows[-1].speedup_high) == pytest.approx((3 / 3.5, 2)), "two pairs: either may be drawn twice"


def test_prompts_without_a_task_have_the_row_all_alone() -> None:
    rows = report([one(OFF, 0, None, completion()), one(NGRAM, 0, None, completion(seconds=0.5))])
    assert [(row.variant.method, row.task, row.speedup) for row in rows] == [("off", "all", 1), ("ngram", "all", 2)]


def test_what_a_lossy_rule_gains_is_said_to_be_lossy() -> None:
    runs = [one(OFF, 0, None, completion()), one(NGRAM, 0, None, completion((4, 3, 2, 1), seconds=0.5, lossy="typical"))]
    rows = report(runs)
    assert [(row.variant.method, row.identical, row.lossy) for row in rows] == [("off", True, None), ("ngram", False, "typical")]
    assert verdict(rows).endswith("pays, 2.00 times the tokens/s of plain decoding (2.00 to 2.00), lossy (typical)")


def test_one_differing_token_is_seen_where_it_is_and_in_all() -> None:
    rows = report(pairs(tokens=(1, 2, 3, 5)))
    assert [row.identical for row in rows] == [True, True, True, True, False, False]


def test_batches_are_compared_with_plain_decoding_at_the_smallest_batch() -> None:
    together = dataclasses.replace(OFF, batch=2)
    runs = [
        one(OFF, 0, None, completion((1, 1))),
        one(OFF, 1, None, completion((2, 2))),
        Run(together, 0, None, (0, 1), (completion((1, 1)), completion((9, 9)))),
    ]
    assert plain_outputs(runs) == {0: (1, 1), 1: (2, 2)}
    assert [(row.variant.batch, row.identical) for row in report(runs)] == [(1, True), (2, False)]


def test_the_spread_of_steady_ratios_is_narrow_and_always_the_same() -> None:
    ones = [1.0] * 40
    steady = [0.5 + 0.01 * (n % 5) for n in range(40)]
    low, high = spread([4] * 40, steady, [4] * 40, ones)
    assert (low, high) == spread([4] * 40, steady, [4] * 40, ones)
    ratio = 40 / sum(steady)
    assert low < ratio < high
    assert high - low < 0.04
    wild_low, wild_high = spread([4] * 40, [0.1, 0.94] * 20, [4] * 40, ones)
    assert wild_high - wild_low > 10 * (high - low)
    assert spread([4], [0.5], [4], [1.0]) == (2, 2)


def test_rates_are_weighed_by_the_drafts_that_reached_a_position() -> None:
    stats = [completion(rates=rates, reached=reached).stats for rates, reached in [((1.0,), (1,)), ((), ()), ((0.5, 0.2), (9, 5))]]
    assert acceptance_by_position(stats) == pytest.approx((5.5 / 10, 0.2))
    assert acceptance_by_position([]) == ()


def test_the_verdict_names_what_pays_and_says_when_nothing_does() -> None:
    def runs(batch: int, seconds: dict[str, float], tokens: tuple[int, ...] = (1, 2, 3, 4)) -> list[Run]:
        off = [Run(Variant("off", 0, batch), n, None, (n,), (completion(seconds=1.0),)) for n in range(3)]
        return off + [
            Run(Variant(method, 4, batch), n, None, (n,), (completion(tokens, seconds=s),))
            for method, s in seconds.items()
            for n in range(3)
        ]

    slow, fast = runs(1, {"ngram": 1.25, "draft_model": 2.0}), runs(4, {"ngram": 0.8, "draft_model": 0.5})
    assert verdict(report(slow)) == "batch 1: do not speculate"
    assert verdict(report(slow + fast)) == (
        "batch 1: do not speculate; batch 4: draft_model with draft_len 4 pays, 2.00 times the tokens/s of plain decoding (2.00 to 2.00)"
    )
    assert verdict(report(runs(1, {"ngram": 0.5}, tokens=(7, 7, 7, 7)))) == "batch 1: do not speculate", "what differs does not pay"
    doubtful = [one(OFF, n, None, completion()) for n in range(3)]
    doubtful += [one(NGRAM, n, None, completion(seconds=seconds)) for n, seconds in enumerate((0.2, 1.3, 1.3))]
    assert report(doubtful)[-1].speedup == pytest.approx(3 / 2.8)
    assert verdict(report(doubtful)) == "batch 1: do not speculate", "a gain that may as well be a loss"
