"""Who is measured when: everyone warmed up, in turns, over whole groups of one task."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from completions import completion

from specbuild.bench.measure import Case, Run, Variant, groups, measure, variants
from specbuild.runtime.generator import Completion
from specbuild.runtime.sampling import SamplingParams


class FakeGenerator:
    """Writes down what it is asked."""

    def __init__(self, batch: int, log: list[tuple[int, str, int | None, int, list[int]]]) -> None:
        self.batch, self.log = batch, log

    def generate(self, prompts: Sequence[tuple[int, ...]], params: SamplingParams) -> list[Completion]:
        assert params.speculation is not None
        self.log.append((self.batch, params.speculation, params.draft_len, params.max_tokens, [prompt[0] for prompt in prompts]))
        return [completion() for _ in prompts]


def test_off_is_always_measured_and_first() -> None:
    assert variants(["ngram", "off", "draft_model", "ngram"], [2, 4, 2], 8) == [
        Variant("off", 0, 8),
        Variant("ngram", 2, 8),
        Variant("ngram", 4, 8),
        Variant("draft_model", 2, 8),
        Variant("draft_model", 4, 8),
    ]
    assert variants(["ngram"], [2], 1, [0, 5]) == [Variant("off", 0, 1), Variant("ngram", 2, 1, 0), Variant("ngram", 2, 1, 5)]
    assert variants([], [4], 1) == variants(["off"], [4], 1) == [Variant("off", 0, 1)]


def test_a_group_is_whole_and_of_one_task() -> None:
    cases = [Case((n,), task) for n, task in enumerate(["a", "b", "a", None, "a"])]
    assert groups(cases, 1) == [(0,), (2,), (4,), (1,), (3,)]
    assert groups(cases, 2) == [(0, 2), (4, 0), (1, 1), (3, 3)]


def test_everyone_is_warmed_up_and_the_order_moves_on_with_each_group() -> None:
    log: list[tuple[int, str, int | None, int, list[int]]] = []
    cases = [Case((n,), "a") for n in range(4)]
    plan = [variants(["ngram", "draft_model"], [3], batch) for batch in (1, 2)]
    runs = measure(lambda batch: FakeGenerator(batch, log), cases, plan, SamplingParams(temperature=0, max_tokens=50, min_tokens=40))
    off, ngram, draft = ("off", None), ("ngram", 3), ("draft_model", 3)
    warm = [(1, *who, 16, [0]) for who in (off, ngram, draft)]
    turns = [(off, ngram, draft), (ngram, draft, off), (draft, off, ngram), (off, ngram, draft)]
    measured = [(1, *who, 50, [case]) for case, turn in enumerate(turns) for who in turn]
    assert log[: 3 + 12] == warm + measured
    assert log[15:18] == [(2, *who, 16, [0, 1]) for who in (off, ngram, draft)]
    assert log[18:] == [(2, *who, 50, members) for members, turn in zip(([0, 1], [2, 3]), turns, strict=False) for who in turn]
    assert len(runs) == 12 + 6
    assert (runs[3].variant, runs[3].group, runs[3].task, runs[3].cases) == (Variant("ngram", 3, 1), 1, "a", (1,))


def test_the_wall_time_of_a_group_is_that_of_its_slowest() -> None:
    answers = (completion(seconds=2.0, engine=1.9), completion((1,) * 10, seconds=3.0, engine=2.5))
    run = Run(Variant("ngram", 4, 2), 0, None, (0, 1), answers)
    assert (run.tokens, run.decode_seconds, run.engine_seconds) == (14, 3.0, 2.5)


def test_sampling_without_a_seed_cannot_be_compared() -> None:
    with pytest.raises(AssertionError, match="without a seed"):
        measure(lambda batch: FakeGenerator(batch, []), [Case((1,), None)], [variants([], [1], 1)], SamplingParams(temperature=1))
