"""The real, seeded acceptance over synthetic models: what it accepts, that coupled text depends on nothing, and laws by G-test."""

from __future__ import annotations

import itertools
import random
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from decoding import Decoding, Markov, accept, g_test, law_of_text
from numpy.typing import NDArray

from specbuild.errors import UnsupportedError
from specbuild.recipe import Lossy, Verification
from specbuild.runtime.acceptance import LOSSY, RULES, SeededRound
from specbuild.runtime.context import Context
from specbuild.runtime.draft import Draft
from specbuild.runtime.law import Law, draw_several
from specbuild.runtime.noise import Stream, uniform
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms

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

    def draft(self, law: Law, depth: int, count: int, branch: int) -> tuple[int, ...]:
        return draw_several(law, count, self.seed, self.position + depth, Stream.DRAFT)

    def coin(self, probability: Any, node: int) -> bool:
        return bool(uniform(self.seed, self.position + node, Stream.COIN) <= probability)


class CoinsOfTheDraft(SeededRound):
    """The planted error: draft tokens and coins share their randomness."""

    def draft(self, law: Law, depth: int, count: int, branch: int) -> tuple[int, ...]:
        u = uniform(self.seed, self.position, Stream.COIN, depth)
        return (int(law.tokens[np.cumsum(law.p)[:-1].searchsorted(u)]),)


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
    for rule in RULES.keys() - {"target_only"}:  # it drafts the likeliest, and draws
        decoding = Decoding(target, target, Transforms(SamplingParams(**SHAPED), 5), rule, draft_len=4)
        for seed in range(50):
            decoding.text(seed, 10)
        assert decoding.decided.keys() == {4}


@pytest.mark.parametrize("rule", RULES)
def test_at_temperature_zero_every_rule_is_greedy(rule: str) -> None:
    target = Markov.random(4)
    expected = [int(target.table[0].argmax())]
    for _ in range(9):
        expected.append(int(target.table[expected[-1]].argmax()))
    rounds = {}
    for width in (1, 3) if RULES[rule].trees else (1,):
        decoding = Decoding(target, Markov.random(2), Transforms(SamplingParams(temperature=0), 5), rule, draft_len=3, width=width)
        assert {decoding.text(seed, 10) for seed in range(5)} == {tuple(expected)}
        rounds[width] = decoding.decided.total()
    assert 3 not in rounds or rounds[3] < rounds[1], "a tree is wide at temperature 0 too"


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
    sentence = (
        f"verification '{rule}' judges chains, not a tree of 2 tokens; trees are judged by coupled, traversal, recursive, target_only"
    )
    with pytest.raises(UnsupportedError, match=sentence):
        accept(np.zeros((3, 4), dtype=np.float32), tree, Transforms(SamplingParams(), 4), Context([0]), 0, rule)


def test_recipes_offer_exactly_the_rules_there_are() -> None:
    assert set(RULES) == set(get_args(Verification))
    assert set(LOSSY) == set(get_args(Lossy))
    assert not set(RULES) & set(LOSSY)


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


@pytest.mark.parametrize("rule", RULES)
def test_a_residual_beyond_float64_divides_by_nothing(rule: str) -> None:
    """1e-17 more than the draft's law is there, and 1e-17 + 1 − 1 is not."""
    p = Law(np.array([0, 1]), np.array([0.0, np.log(1e-17)]))
    verdict = RULES[rule].judge(lambda node: p, Draft.chain([0, 0], [Law.point(0)] * 2), SeededRound(0, 0))
    assert verdict.tokens == (0, 0, 0)
