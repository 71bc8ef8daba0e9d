"""The real, seeded acceptance over synthetic models: what it accepts, that coupled text depends on nothing, and laws by G-test."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from specbuild.errors import UnsupportedError
from specbuild.recipe import Verification
from specbuild.runtime.acceptance import RULES, SeededRound, Verdict
from specbuild.runtime.context import Context
from specbuild.runtime.draft import Draft
from specbuild.runtime.law import Law, draw
from specbuild.runtime.noise import Stream, uniform
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms

Rows = NDArray[np.float32]


@dataclass
class Markov:
    """A model whose logits depend on the last token."""

    table: Rows
    """[V, V]"""

    @classmethod
    def random(cls, seed: int, size: int = 5, spread: float = 1.2) -> Markov:
        return cls((np.random.default_rng(seed).standard_normal((size, size)) * spread).astype(np.float32))

    def rows(self, draft: Draft, context: Context) -> Rows:
        return self.table[[context.tokens[-1], *draft.tokens]]


def accept(rows: Rows, draft: Draft, transforms: Transforms, context: Context, seed: int, rule: str = "coupled") -> Verdict:
    """One round's verdict, all from its logits."""
    return RULES[rule].judge(transforms.laws(rows, draft, context), draft, SeededRound(seed, context.position))


@dataclass
class Decoding:
    """A loop of rounds over a Markov target and draft."""

    target: Markov
    proposer: Markov
    transforms: Transforms
    rule: str
    draft_len: int
    decided: Counter[int] = field(default_factory=Counter)
    """Accepted tokens of a round → rounds."""
    round_type: type[SeededRound] = SeededRound

    def draft(self, context: Context, seed: int) -> Draft:
        rule, randomness = RULES[self.rule], self.round_type(seed, context.position)
        tokens: list[int] = []
        laws: list[Law] = []
        for depth in range(self.draft_len):
            with context.after(tokens):
                laws.append(self.transforms.law(self.proposer.table[context.tokens[-1]], context))
            tokens.append(rule.choose(laws[-1], randomness, depth))
        return Draft.chain(tokens, laws if rule.needs_laws else None)

    def text(self, seed: int, length: int) -> tuple[int, ...]:
        context = Context([0])
        while context.output_length < length:
            draft = self.draft(context, seed)
            laws = self.transforms.laws(self.target.rows(draft, context), draft, context)
            verdict = RULES[self.rule].judge(laws, draft, self.round_type(seed, context.position))
            self.decided[len(verdict.accepted)] += 1
            for token in verdict.tokens:
                context.push(token)
        return tuple(context.tokens[1 : length + 1])


def law_of_text(target: Markov, transforms: Transforms, length: int) -> dict[tuple[int, ...], float]:
    """The exact law of the target's first ``length`` tokens."""
    law: dict[tuple[int, ...], float] = {}
    context = Context([0])

    def extend(text: tuple[int, ...], probability: float) -> None:
        if len(text) == length:
            law[text] = probability
            return
        with context.after(text):
            step = transforms.law(target.table[context.tokens[-1]], context)
        for token, p in zip(step.tokens.tolist(), step.p.tolist(), strict=True):
            extend((*text, token), probability * p)

    extend((), 1.0)
    return law


def g_test(texts: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """p-value of the likelihood-ratio test; texts expected fewer than 5 times share a cell."""
    seen = Counter(texts)
    assert seen.keys() <= law.keys(), "a text that the target never writes"
    common = [text for text in law if law[text] * len(texts) >= 5]
    observed = [seen[text] for text in common]
    expected = [law[text] * len(texts) for text in common]
    rest = len(texts) - sum(expected)
    if rest > 1:
        observed.append(len(texts) - sum(observed))
        expected.append(rest)
    scale = sum(observed) / sum(expected)
    return float(stats.power_divergence(observed, [value * scale for value in expected], lambda_="log-likelihood").pvalue)


PLAIN: dict[str, Any] = {"temperature": 1.0}
SHAPED: dict[str, Any] = {"temperature": 0.8, "top_k": 4, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4}


@pytest.mark.slow
@pytest.mark.parametrize("options", [PLAIN, SHAPED], ids=["plain", "shaped"])
@pytest.mark.parametrize("rule", RULES)
def test_seeded_rounds_follow_the_targets_law(rule: str, options: dict[str, Any]) -> None:
    """Four tokens of 4,000 seeds, over several rounds each."""
    transforms = Transforms(SamplingParams(**options), 5)
    decoding = Decoding(Markov.random(1), Markov.random(2), transforms, rule, draft_len=2)
    texts = [decoding.text(seed, 4) for seed in range(4000)]
    assert g_test(texts, law_of_text(decoding.target, transforms, 4)) > 0.01
    assert min(decoding.decided[length] for length in (0, 1, 2)) > 200, "all lengths occur"


class KeyedByOwnPlace(SeededRound):
    """The planted error: drafts and coins keyed by their token's own position, so that the next round meets what this one has looked at."""

    def draft(self, law: Law, depth: int) -> int:
        return draw(law, self.seed, self.position + depth, Stream.DRAFT)

    def coin(self, probability: Any, depth: int) -> bool:
        return bool(uniform(self.seed, self.position + depth, Stream.COIN) <= probability)


class CoinsOfTheDraft(SeededRound):
    """The planted error: draft tokens and coins share their randomness."""

    def draft(self, law: Law, depth: int) -> int:
        u = uniform(self.seed, self.position, Stream.COIN, depth)
        return int(law.tokens[np.cumsum(law.p)[:-1].searchsorted(u)])


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "wrong"), [("block", KeyedByOwnPlace), ("token", CoinsOfTheDraft), ("block", CoinsOfTheDraft)])
def test_wrong_randomness_is_rejected(rule: str, wrong: type[SeededRound]) -> None:
    transforms = Transforms(SamplingParams(**PLAIN), 5)
    decoding = Decoding(Markov.random(1), Markov.random(2), transforms, rule, draft_len=2, round_type=wrong)
    texts = [decoding.text(seed, 2) for seed in range(4000)]
    assert g_test(texts, law_of_text(decoding.target, transforms, 2)) < 0.01


@pytest.mark.parametrize("options", [PLAIN, SHAPED, {"temperature": 0.0}], ids=["plain", "shaped", "greedy"])
def test_coupled_text_depends_on_nothing_but_the_seed(options: dict[str, Any]) -> None:
    """Without a draft, with good and bad proposers, any length, and random trees."""
    transforms = Transforms(SamplingParams(**options), 5)
    target = Markov.random(1)
    for seed in range(30):
        plain = Decoding(target, target, transforms, "coupled", 0).text(seed, 12)
        for proposer, draft_len in itertools.product([target, Markov.random(2)], [1, 3, 7]):
            assert Decoding(target, proposer, transforms, "coupled", draft_len).text(seed, 12) == plain
        context, generator = Context([0]), random.Random(seed)
        while context.output_length < 12:
            parents = tuple(generator.randint(-1, node - 1) for node in range(10))
            tree = Draft(tuple(generator.randrange(5) for _ in parents), parents)
            for token in accept(target.rows(tree, context), tree, transforms, context, seed).tokens:
                context.push(token)
        assert tuple(context.tokens[1:13]) == plain


def test_a_perfect_proposer_is_accepted_whole() -> None:
    target = Markov.random(3)
    for rule in RULES:
        decoding = Decoding(target, target, Transforms(SamplingParams(**SHAPED), 5), rule, draft_len=4)
        for seed in range(50):
            decoding.text(seed, 10)
        assert decoding.decided.keys() == {4}


@pytest.mark.parametrize("rule", RULES)
def test_at_temperature_zero_every_rule_is_greedy(rule: str) -> None:
    target = Markov.random(4)
    decoding = Decoding(target, Markov.random(2), Transforms(SamplingParams(temperature=0), 5), rule, draft_len=3)
    expected = [int(target.table[0].argmax())]
    for _ in range(9):
        expected.append(int(target.table[expected[-1]].argmax()))
    assert {decoding.text(seed, 10) for seed in range(5)} == {tuple(expected)}


def test_a_tree_is_walked_and_only_reached_rows_are_read() -> None:
    """Greedy: 2 → 1 → 4 lies in the tree as nodes 1, 4; the rows of the other nodes are never asked for."""
    draft = Draft(tokens=(0, 2, 3, 1, 1, 0), parents=(-1, -1, 0, 0, 1, 1))
    likely = {-1: 2, 1: 1, 4: 4}
    verdict = RULES["coupled"].judge(lambda node: Law.point(likely[node]), draft, SeededRound(0, 0))
    assert verdict.accepted == (1, 4)
    assert verdict.tokens == (2, 1, 4)
    assert (verdict.tail, verdict.drafted) == (4, 6)
    assert [draft.children(node) for node in (-1, 0, 1, 2)] == [(0, 1), (2, 3), (4, 5), ()]
    assert (draft.path(4), draft.depth, draft.is_chain) == ((1, 4), 2, False)


def test_an_empty_draft_is_plain_decoding() -> None:
    row = np.zeros((1, 3), dtype=np.float32)
    for rule in RULES:
        verdict = accept(row, Draft.EMPTY, Transforms(SamplingParams(logit_bias={1: 100.0}), 3), Context([0]), 7, rule)
        assert (verdict.accepted, verdict.tokens, verdict.drafted) == ((), (1,), 0)


def test_acceptance_leaves_the_context_alone() -> None:
    context = Context([0])
    context.push(3)
    draft = Draft.chain([1, 2])
    accept(np.zeros((3, 4), dtype=np.float32), draft, Transforms(SamplingParams(presence_penalty=1), 4), context, 7)
    assert context.tokens == [0, 3]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_trees_are_refused_by_the_rules_for_chains(rule: str) -> None:
    tree = Draft(tokens=(0, 1), parents=(-1, -1))
    with pytest.raises(UnsupportedError, match=f"verification '{rule}' judges chains, not a tree of 2 tokens; use verification 'coupled'"):
        accept(np.zeros((3, 4), dtype=np.float32), tree, Transforms(SamplingParams(), 4), Context([0]), 0, rule)


def test_recipes_offer_exactly_the_rules_there_are() -> None:
    assert set(RULES) == set(get_args(Verification))


@cache
def synthetic_laws(seed: int, concentration: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A target's law over 50 tokens and a draft's that resembles it."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.full(50, concentration))
    q = p * np.exp(generator.normal(0, 0.8, 50))
    return p, q / q.sum()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "concentration"), [(0, 0.1), (1, 0.3), (2, 1.0)])
def test_coupled_acceptance_has_its_closed_form(seed: int, concentration: float) -> None:
    """Σₓ 1/Σ_y max(p_y/p_x, q_y/q_x) (2408.07978), and between (1 − TV)/(1 + TV) and 1 − TV."""
    p, q = synthetic_laws(seed, concentration)
    closed = sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in range(50))
    target, proposer = Law.of(p), Law.of(q)
    draws = 20_000
    rounds = [SeededRound(77, position) for position in range(draws)]
    seen = sum(each.shared(target, 0) == each.shared(proposer, 0) for each in rounds) / draws
    assert abs(seen - closed) < 0.01
    distance = np.abs(p - q).sum() / 2
    assert (1 - distance) / (1 + distance) <= closed <= 1 - distance
