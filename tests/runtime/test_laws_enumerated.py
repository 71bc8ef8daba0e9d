"""Every rule's output law on chains, by exact enumeration of all that a round can choose."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from enumeration import VOCABULARY, Model, enumerate_all, error, expected_tokens, law_of_round, laws_along, random_model
from numpy.typing import NDArray

from specbuild.runtime.acceptance import RULES, Randomness, Rule, rejection
from specbuild.runtime.context import Context
from specbuild.runtime.draft import Draft
from specbuild.runtime.law import Law
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms


@pytest.mark.parametrize("zeros", [False, True], ids=["full", "zeros"])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("name", RULES)
def test_law_is_the_targets_with_error_zero(name: str, length: int, zeros: bool) -> None:
    for seed in range(30 if length < 3 else 12):
        target, proposer = random_model(2 * seed, zeros=zeros), random_model(2 * seed + 1, zeros=zeros)
        emitted = law_of_round(RULES[name], target, proposer, length)
        assert all(isinstance(probability, Fraction) for probability in emitted.values())
        assert error(emitted, target, length + 1) == 0


@pytest.mark.parametrize("name", RULES)
def test_deterministic_drafts_are_exact_too(name: str) -> None:
    """Nothing was drawn, so no laws are given: q = 1 at the token."""
    for seed, tokens in enumerate(itertools.product(range(VOCABULARY), repeat=3)):
        target = random_model(seed, zeros=seed % 2 == 0)
        draft = Draft.chain(tokens)

        def run(randomness: Randomness, draft: Draft = draft, target: Model = target) -> tuple[int, ...]:
            return RULES[name].judge(laws_along(target, draft), draft, randomness).tokens

        assert error(enumerate_all(run), target, 4) < 1e-14


def test_block_never_keeps_fewer_tokens_than_token() -> None:
    gains = []
    for seed in range(15):
        target, proposer = random_model(2 * seed), random_model(2 * seed + 1)
        for length in (1, 2, 3) if seed < 6 else (1, 2):
            block, token = (expected_tokens(law_of_round(RULES[name], target, proposer, length)) for name in ("block", "token"))
            assert block == token if length == 1 else block >= token
            gains.append(block - token)
    assert max(gains) > Fraction(1, 20), "and often more"


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"top_k": 2},
        {"top_p": 0.6},
        {"min_p": 0.3},
        {"temperature": 0.8, "top_k": 2, "repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"logit_bias": {0: 1.5}, "bad_words": [[1], [0, 2]]},
        {"min_tokens": 2, "stop_token_ids": [2], "max_tokens": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", RULES)
def test_every_transform_is_exact_under_every_rule(name: str, options: dict[str, Any]) -> None:
    """Both models pass the real transforms, the prefix counted; errors are those of float64."""
    transforms = Transforms(SamplingParams(**options), VOCABULARY)
    context = Context([0])

    def model(seed: int) -> Model:
        def law(history: tuple[int, ...]) -> Law:
            generator = np.random.default_rng([seed, *history])
            with context.after(history):
                return transforms.law(generator.normal(0, 1.5, VOCABULARY).astype(np.float32), context)

        return cache(law)

    for seed in range(3):
        target, proposer = model(2 * seed), model(2 * seed + 1)
        assert error(law_of_round(RULES[name], target, proposer, 2), target, 3) < 1e-14


def swapped(before: Any, p: Law, q: Law, token: int) -> Any:
    ratio = p.probability(token)
    return min(1, before * q.probability(token) / ratio) if ratio else 1


def unscaled(p: Law, q: Law, scale: Any) -> NDArray[Any]:
    weights: NDArray[Any] = np.maximum(p.p - q.at(p.tokens), 0)
    return weights


@pytest.mark.parametrize(
    ("name", "function", "wrong"),
    [
        ("token", "reach", swapped),
        ("token", "residual", lambda p, q, scale: p.p),
        ("token", "reach", lambda before, p, q, token: min(1, p.probability(token))),
        ("block", "reach", swapped),
        ("block", "residual", lambda p, q, scale: p.p),
        ("block", "residual", unscaled),
        ("block", "reach", lambda before, p, q, token: min(1, p.probability(token) / q.probability(token))),
    ],
    ids=["p and q swapped", "no residual", "q ignored", "p and q swapped", "no residual", "residual unscaled", "prefix forgotten"],
)
def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, function: str, wrong: Callable[..., Any]) -> None:
    monkeypatch.setattr(rejection, function, wrong)
    errors = []
    for seed in range(5):
        target, proposer = random_model(2 * seed), random_model(2 * seed + 1)
        errors.append(error(law_of_round(RULES[name], target, proposer, 2), target, 3))
    assert max(errors) > Fraction(1, 100)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.needs_laws])
def test_a_draft_that_says_another_law_than_its_own_is_noticed(name: str) -> None:
    """The planted fault: tokens drawn from one model, with the laws of another."""
    rule, errors = RULES[name], []
    for seed in range(5):
        target, proposer, other = random_model(2 * seed), random_model(2 * seed + 1), random_model(1000 + seed)

        def run(randomness: Randomness, target: Model = target, proposer: Model = proposer, other: Model = other) -> tuple[int, ...]:
            tokens: tuple[int, ...] = ()
            for depth in range(2):
                tokens += (rule.choose(proposer(tokens), randomness, depth),)
            draft = Draft.chain(tokens, [other(()), other(tokens[:1])])
            return rule.judge(laws_along(target, draft), draft, randomness).tokens

        errors.append(error(enumerate_all(run), target, 3))
    assert min(errors) > Fraction(1, 1000)
    assert max(errors) > Fraction(1, 50)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.needs_laws])
def test_laws_left_out_cost_tokens_and_not_the_law(name: str) -> None:
    """A drawn token judged as if nothing was drawn (q = 1) is kept less often: what ``needs_laws`` is for."""
    rule = RULES[name]
    silent = Rule(rule.choose_children, rule.judge, needs_laws=False)
    for seed in range(5):
        target, proposer = random_model(2 * seed), random_model(2 * seed + 1)
        emitted = law_of_round(silent, target, proposer, 2)
        assert error(emitted, target, 3) < 1e-14
        assert expected_tokens(emitted) < expected_tokens(law_of_round(rule, target, proposer, 2))
