"""Every rule's output law, by exact enumeration of all that a round can choose.

The rules run as they are; only where their choices come from is replaced: ``Branching`` takes each in turn and multiplies its probability.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specbuild.runtime.acceptance import RULES, Randomness, Rule, Verdict, rejection
from specbuild.runtime.context import Context
from specbuild.runtime.draft import Draft
from specbuild.runtime.law import Law
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms

VOCABULARY = 3
Model = Callable[[tuple[int, ...]], Law]
"""History → law of the next token."""


class ExactLaw(Law):
    """A law whose probabilities are fractions."""

    def __init__(self, weights: Sequence[int]) -> None:
        tokens = np.flatnonzero(np.array(weights) > 0)
        super().__init__(tokens, np.log(np.array(weights, dtype=np.float64)[tokens]))
        self.__dict__["p"] = np.array([Fraction(weight, sum(weights)) for weight in weights if weight > 0], dtype=object)


@dataclass
class Branching(Randomness):
    """Follows ``script`` as far as it goes, then takes the first branch each time."""

    script: Sequence[int] = ()
    taken: list[tuple[int, int]] = field(default_factory=list)
    """(branch taken, branches there were) at each choice."""
    probability: Any = 1

    def _branch(self, values: Sequence[Any], weights: Sequence[Any]) -> Any:
        possible = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight > 0]
        index = self.script[len(self.taken)] if len(self.taken) < len(self.script) else 0
        self.taken.append((index, len(possible)))
        value, weight = possible[index]
        self.probability *= weight / sum((weight for _, weight in possible), Fraction(0))
        return value

    def shared(self, law: Law, depth: int) -> int:
        return self.draft(law, depth)

    def draft(self, law: Law, depth: int) -> int:
        return int(self._branch(law.tokens.tolist(), law.p.tolist()))

    def coin(self, probability: Any, depth: int) -> bool:
        return bool(self._branch([True, False], [probability, 1 - probability]))

    def tail(self, tokens: NDArray[np.int64], weights: NDArray[Any], depth: int) -> int:
        return int(self._branch(tokens.tolist(), weights.tolist()))


def enumerate_all(run: Callable[[Branching], tuple[int, ...]]) -> dict[tuple[int, ...], Any]:
    """Outcome → probability over every way that ``run`` can choose."""
    outcomes: dict[tuple[int, ...], Any] = defaultdict(int)
    script: list[int] | None = []
    while script is not None:
        branching = Branching(script)
        outcomes[run(branching)] += branching.probability
        last = max((place for place, (index, count) in enumerate(branching.taken) if index + 1 < count), default=None)
        if last is None:
            script = None
        else:
            script = [index for index, _ in branching.taken[: last + 1]]
            script[last] += 1
    return outcomes


def one_round(rule: Rule, target: Model, proposer: Model, length: int, randomness: Randomness) -> Verdict:
    """Draft ``length`` tokens by the rule's own way of choosing, and judge them."""
    tokens: tuple[int, ...] = ()
    laws: list[Law] = []
    for depth in range(length):
        laws.append(proposer(tokens))
        tokens += (rule.choose(laws[-1], randomness, depth),)
    draft = Draft.chain(tokens, laws if rule.needs_laws else None)
    return rule.judge(laws_along(target, draft), draft, randomness)


def laws_along(target: Model, draft: Draft) -> Callable[[int], Law]:
    """The target's law after each node of a draft."""
    return lambda node: target(tuple(draft.tokens[step] for step in draft.path(node)))


def law_of_round(rule: Rule, target: Model, proposer: Model, length: int) -> dict[tuple[int, ...], Any]:
    """Law of what a round emits, from one token to ``length + 1``."""
    return enumerate_all(lambda randomness: one_round(rule, target, proposer, length, randomness).tokens)


def error(emitted: dict[tuple[int, ...], Any], target: Model, length: int) -> Any:
    """Largest difference between the target's law of ``length`` tokens and the round's, continued by the target where it ends earlier."""
    completed: dict[tuple[int, ...], Any] = defaultdict(int)
    for tokens, probability in emitted.items():
        for text, continuation in plain(target, length, tokens).items():
            completed[text] += probability * continuation
    expected = plain(target, length)
    return max(abs(completed[text] - expected[text]) for text in expected.keys() | completed.keys())


def plain(target: Model, length: int, start: tuple[int, ...] = ()) -> dict[tuple[int, ...], Any]:
    """Law of the target's texts of ``length`` tokens that begin with ``start``."""
    texts: dict[tuple[int, ...], Any] = defaultdict(int, {start: 1})
    for _ in range(length - len(start)):
        longer: dict[tuple[int, ...], Any] = defaultdict(int)
        for text, probability in texts.items():
            law = target(text)
            for token, p in zip(law.tokens.tolist(), law.p.tolist(), strict=True):
                longer[(*text, token)] += probability * p
        texts = longer
    return texts


def random_model(seed: int, *, zeros: bool = False) -> Model:
    """A law of its own for each history, with weights 1…9 (0…4 with ``zeros``)."""

    @cache
    def model(history: tuple[int, ...]) -> Law:
        generator = random.Random(f"{seed} {history}")
        weights = [generator.randint(0, 4) if zeros else generator.randint(1, 9) for _ in range(VOCABULARY)]
        return ExactLaw(weights if any(weights) else [1] * VOCABULARY)

    return model


def expected_tokens(emitted: dict[tuple[int, ...], Any]) -> Any:
    return sum(probability * len(tokens) for tokens, probability in emitted.items())


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


def test_coupled_is_exact_on_trees() -> None:
    for seed in range(10):
        generator = random.Random(seed)
        parents = tuple(generator.randint(-1, node - 1) for node in range(6))
        draft = Draft(tuple(generator.randrange(VOCABULARY) for _ in parents), parents)
        target = random_model(seed)

        def run(randomness: Randomness, draft: Draft = draft, target: Model = target) -> tuple[int, ...]:
            return RULES["coupled"].judge(laws_along(target, draft), draft, randomness).tokens

        assert error(enumerate_all(run), target, draft.depth + 1) == 0


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


@pytest.mark.parametrize("name", ["token", "block"])
def test_laws_left_out_cost_tokens_and_not_the_law(name: str) -> None:
    """A drawn token judged as if nothing was drawn (q = 1) is kept less often: what ``needs_laws`` is for."""
    rule = RULES[name]
    silent = Rule(rule.choose, rule.judge, needs_laws=False)
    for seed in range(5):
        target, proposer = random_model(2 * seed), random_model(2 * seed + 1)
        emitted = law_of_round(silent, target, proposer, 2)
        assert error(emitted, target, 3) < 1e-14
        assert expected_tokens(emitted) < expected_tokens(law_of_round(rule, target, proposer, 2))
