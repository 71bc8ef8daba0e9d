"""Figures of a request: only what was emitted counts, and a draft that a stop cut short did not fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from plain import plainly
from toy_engine import EOS, VOCABULARY, Toys, toys

from specbuild.runtime.draft import Draft
from specbuild.runtime.proposers.base import Ask, Proposer
from specbuild.runtime.proposers.replay import ReplayProposer
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.stats import RequestCounter, RequestStats

__all__ = ["toys"]


def replay(toys: Toys, faults: tuple[int, ...], **options: Any) -> tuple[RequestStats, tuple[int, ...]]:
    """Twelve tokens after [1, 2, 3] with drafts of four; the recording is wrong at ``faults``."""
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "seed": 1, "ignore_eos": True, **options})
    plain = plainly(toys.target, toys.generator(), [1, 2, 3], SamplingParams(temperature=0, max_tokens=12, seed=1, ignore_eos=True))
    recording = [(token + (place in faults)) % VOCABULARY for place, token in enumerate(plain.tokens)]
    generator = toys.generator(proposers={"replay": ReplayProposer({0: recording})})
    speculative = SamplingParams(**{**vars(params), "speculation": "replay", "draft_len": 4})
    return generator.generate([[1, 2, 3]], speculative)[0].stats, plain.tokens


def test_counts_are_exact(toys: Toys) -> None:
    """Rounds: 4 + 1, then 1 kept of 4 and the recovered token, then 4 + 1."""
    stats, _ = replay(toys, faults=(6,))
    assert (stats.prompt_tokens, stats.emitted_tokens, stats.num_spec_steps) == (3, 12, 3)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (12, 9)
    assert (stats.mean_acceptance_length, stats.draft_acceptance_rate) == (4, 0.75)
    assert stats.acceptance_by_position == (1, 2 / 3, 1, 1)


def test_tau_is_one_plus_accepted_a_round(toys: Toys) -> None:
    for faults in ((), (0,), (0, 1, 2, 3), (3, 7, 9)):
        stats, _ = replay(toys, faults)
        assert stats.mean_acceptance_length == pytest.approx(1 + stats.num_accepted_tokens / stats.num_spec_steps)


def test_what_lies_past_a_stop_is_not_accepted(toys: Toys) -> None:
    """The stop is the third draft token: three emitted, three accepted, none rejected, though four were drafted and right."""
    _, tokens = replay(toys, ())
    third = tokens[2]
    assert third not in tokens[:2]
    for stop in ({"stop_token_ids": [third]}, {"stop": [toys.generator().tokenizer.decode([third])]}):
        for faults in ((), (3,)):
            stats, _ = replay(toys, faults, **stop)
            assert (stats.emitted_tokens, stats.num_spec_steps, stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 1, 4, 3)
            assert stats.acceptance_by_position == (1, 1, 1)
            assert stats.mean_acceptance_length == 3


def test_max_tokens_is_never_drafted_past(toys: Toys) -> None:
    stats, _ = replay(toys, (), max_tokens=3)
    assert (stats.emitted_tokens, stats.num_draft_tokens, stats.num_accepted_tokens, stats.num_spec_steps) == (3, 2, 2, 1)


def test_without_drafts_every_figure_is_plain(toys: Toys) -> None:
    params = SamplingParams(seed=1, max_tokens=7, speculation="off", logit_bias={EOS: -100.0})
    stats = toys.generator().generate([[1]], params)[0].stats
    assert (stats.emitted_tokens, stats.num_spec_steps, stats.num_draft_tokens, stats.mean_acceptance_length) == (7, 7, 0, 1)
    assert (stats.draft_acceptance_rate, stats.acceptance_by_position, stats.draft_seconds >= 0) == (0, (), True)
    assert 0 < stats.engine_seconds <= stats.decode_seconds
    assert stats.tokens_per_second == pytest.approx(7 / stats.decode_seconds)


class OneTree(Proposer):
    """Two branches: one right token that nothing follows, and a wrong one that two follow."""

    def __init__(self, right: int) -> None:
        self.right = right

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        wrong = (self.right + 1) % VOCABULARY
        return [Draft((self.right, wrong, 0, 0), (-1, -1, 1, 2)) if ask.draft_len > 2 else Draft.EMPTY for ask in asks]


def test_a_branch_kept_to_its_end_did_not_fail_where_others_went_on(toys: Toys) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, seed=1, ignore_eos=True)
    plain = plainly(toys.target, toys.generator(), [1, 2, 3], params)
    generator = toys.generator(proposers={"tree": OneTree(plain.tokens[0])})
    completion = generator.generate(
        [[1, 2, 3]], SamplingParams(**{**vars(params), "speculation": "tree", "draft_len": 4, "tree_budget": 5})
    )[0]
    assert completion.token_ids == plain.tokens
    assert completion.stats.acceptance_by_position == (1,)
    assert (completion.stats.num_accepted_tokens, completion.stats.num_draft_tokens) == (1, 4)


def test_a_counter_that_counted_nothing_divides_by_nothing() -> None:
    stats = RequestCounter(5).freeze()
    assert (stats.mean_acceptance_length, stats.draft_acceptance_rate, stats.tokens_per_second) == (0, 0, 0)
