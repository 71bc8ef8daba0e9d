"""Exact enumeration of all that a round can choose, over a vocabulary of three tokens and laws that are fractions.

The rules run as they are; only where their choices come from is replaced: ``Branching`` takes each in turn and multiplies its probability.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.runtime.acceptance import Randomness, Rule, Verdict
from specbuild.runtime.draft import ROOT, Draft
from specbuild.runtime.law import Law

VOCABULARY = 3
Model = Callable[[tuple[int, ...]], Law]
"""History → law of the next token."""


class ExactLaw(Law):
    """A law whose probabilities are fractions."""

    def __init__(self, weights: Sequence[int]) -> None:
        tokens = np.flatnonzero(np.array(weights) > 0)
        super().__init__(tokens, np.log(np.array(weights, dtype=np.float64)[tokens]))
        self.__dict__["p"] = np.array([Fraction(weight, sum(weights)) for weight in weights if weight > 0], dtype=object)
        self._weights = weights

    def without(self, tokens: Collection[int]) -> Law:
        return ExactLaw([0 if token in tokens else weight for token, weight in enumerate(self._weights)])


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
        return self.guesses(law, depth, 1)[0]

    def guesses(self, law: Law, depth: int, count: int) -> tuple[int, ...]:
        return self.draft(law, depth, count, 0)

    def noise(self, tokens: Sequence[int], depth: int) -> NDArray[np.float64]:
        return np.zeros(len(tokens))

    def draft(self, law: Law, depth: int, count: int, branch: int) -> tuple[int, ...]:
        drawn: list[int] = []
        while len(drawn) < min(count, law.tokens.size):
            left = law.without(drawn)
            drawn.append(int(self._branch(left.tokens.tolist(), left.p.tolist())))
        return tuple(drawn)

    def coin(self, probability: Any, node: int) -> bool:
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


Shape = tuple[Any, ...]
"""A tree without tokens: the shapes below its root's children, in order. ``()`` is a leaf, ``((),)`` has one child."""


def draw_tree(rule: Rule, proposer: Model, shape: Shape, randomness: Randomness) -> Draft:
    """A draft of ``shape``, level by level, by the rule's own way of choosing; it carries the laws."""
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Law] = []
    level: list[tuple[int, tuple[int, ...], Shape]] = [(ROOT, (), shape)]
    depth = 0
    while level:
        below: list[tuple[int, tuple[int, ...], Shape]] = []
        for branch, (node, history, shapes) in enumerate(level):
            law = proposer(history)
            # Of a law with few tokens there are fewer children than the shape has.
            children = rule.choose_children(law, randomness, depth, len(shapes), branch) if shapes else ()
            for token, child in zip(children, shapes, strict=False):
                below.append((len(tokens), (*history, token), child))
                tokens.append(token)
                parents.append(node)
                laws.append(law)
        level = below
        depth += 1
    return Draft(tuple(tokens), tuple(parents), tuple(laws))


def drafts_of(rule: Rule, proposer: Model, shape: Shape) -> list[tuple[Draft, Any]]:
    """Every draft of ``shape`` and its probability."""
    drafts: dict[tuple[int, ...], Draft] = {}

    def run(randomness: Branching) -> tuple[int, ...]:
        draft = draw_tree(rule, proposer, shape, randomness)
        key = (*draft.tokens, *draft.parents)
        drafts[key] = draft
        return key

    return [(drafts[key], probability) for key, probability in enumerate_all(run).items()]


def law_of_judging(rule: Rule, target: Model, drafts: Sequence[tuple[Draft, Any]]) -> dict[tuple[int, ...], Any]:
    """Law of what a round emits that judges one of ``drafts``."""
    emitted: dict[tuple[int, ...], Any] = defaultdict(int)
    for draft, probability in drafts:
        law_at = cache(laws_along(target, draft))
        for tokens, chance in enumerate_all(lambda randomness, d=draft, law=law_at: rule.judge(law, d, randomness).tokens).items():
            emitted[tokens] += probability * chance
    return emitted
