"""Trees under the real, seeded randomness: children without replacement, noise apart in every branch, laws by G-test."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from decoding import Decoding, Markov, g_test, law_of_text
from scipy import stats

from specbuild.runtime.acceptance import LOSSY, RULES, SeededRound
from specbuild.runtime.acceptance.typical import is_typical
from specbuild.runtime.draft import Draft
from specbuild.runtime.law import Law, draw_several
from specbuild.runtime.noise import Stream, gumbel
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms

TREE_RULES = [name for name, rule in RULES.items() if rule.trees]
PLAIN = Transforms(SamplingParams(temperature=1.0), 5)
Q = Law.of([0.4, 0.3, 0.2, 0.1])


@pytest.mark.slow
@pytest.mark.parametrize("rule", TREE_RULES)
def test_seeded_rounds_over_trees_follow_the_targets_law(rule: str) -> None:
    decoding = Decoding(Markov.random(1), Markov.random(2), PLAIN, rule, draft_len=2, width=2)
    texts = [decoding.text(seed, 3) for seed in range(3000)]
    assert g_test(texts, law_of_text(decoding.target, PLAIN, 3)) > 0.01
    assert min(decoding.decided[length] for length in (0, 1, 2)) > 200, "all lengths occur"


class Alike(SeededRound):
    """The planted error: the nodes of one depth share their noise."""

    def draft(self, law: Law, depth: int, count: int, branch: int) -> tuple[int, ...]:
        return super().draft(law, depth, count, 0)


class CoinsByDepth(SeededRound):
    """The planted error: one coin a depth, so that a sibling is judged by the coin that its elder lost."""

    def coin(self, probability: Any, node: int) -> bool:
        return super().coin(probability, 0 if node < 2 else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "wrong"), [("traversal", Alike), ("traversal", CoinsByDepth), ("recursive", CoinsByDepth)])
def test_noise_in_common_across_a_tree_is_rejected(rule: str, wrong: type[SeededRound]) -> None:
    decoding = Decoding(Markov.random(1), Markov.random(2), PLAIN, rule, draft_len=2, round_type=wrong, width=2)
    texts = [decoding.text(seed, 3) for seed in range(6000)]
    assert g_test(texts, law_of_text(decoding.target, PLAIN, 3)) < 0.01


def without_replacement(law: Law, count: int) -> dict[tuple[int, ...], float]:
    """Probability of every ordered choice of ``count`` tokens."""
    chances: dict[tuple[int, ...], float] = {}
    for tokens in itertools.permutations(law.tokens.tolist(), count):
        chances[tokens], left = 1.0, 1.0
        for token in tokens:
            chances[tokens] *= law.probability(token) / left
            left -= law.probability(token)
    return chances


@pytest.mark.parametrize("rule", ["coupled", "traversal", "recursive"])
def test_children_are_drawn_without_replacement(rule: str) -> None:
    """All 24 ordered choices of 3 of 4 tokens, by χ²."""
    seen = Counter(RULES[rule].choose_children(Q, SeededRound(3, position), 1, 3, 2) for position in range(6000))
    expected = without_replacement(Q, 3)
    assert seen.keys() <= expected.keys()
    assert stats.chisquare([seen[tokens] for tokens in expected], [6000 * p for p in expected.values()]).pvalue > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_fewer_children_are_the_first_of_more(rule: str) -> None:
    """And a chain's token is the first child; a law with few tokens has few children."""
    for seed in range(50):
        randomness = SeededRound(seed, 9)
        children = [RULES[rule].choose_children(Q, randomness, 2, count, 0) for count in range(1, 7)]
        assert [len(tokens) for tokens in children] == [1, 2, 3, 4, 4, 4]
        assert all(tokens == children[-1][: len(tokens)] for tokens in children)
        assert children[0] == (RULES[rule].choose(Q, randomness, 2),)
        assert sorted(children[-1]) == [0, 1, 2, 3]


def test_a_coupled_child_is_the_token_that_the_target_would_emit() -> None:
    for position in range(200):
        randomness = SeededRound(1, position)
        assert RULES["coupled"].choose(Q, randomness, 3) == randomness.shared(Q, 3) == SeededRound(1, position + 3).shared(Q, 0)


@pytest.mark.parametrize(("depth", "branch", "later"), [(1, 1, 0), (2, 0, 0), (2, 1, 0), (1, 0, 1)])
def test_branches_are_independent(depth: int, branch: int, later: int) -> None:
    """χ² of the joint table of the first children of two nodes: depth 1, branch 0 and another, or that of a later round."""
    pairs: Counter[tuple[int, int]] = Counter()
    for position in range(6000):
        (one,) = SeededRound(4, position).draft(Q, 1, 1, 0)
        (two,) = SeededRound(4, position + later).draft(Q, depth, 1, branch)
        pairs[one, two] += 1
    expected = {(a, b): 6000 * Q.probability(a) * Q.probability(b) for a in range(4) for b in range(4)}
    assert stats.chisquare([pairs[pair] for pair in expected], list(expected.values())).pvalue > 1e-3


@pytest.mark.parametrize("count", [1, 2, 7, 600, 2000])
def test_several_of_a_large_law_are_those_of_all_its_noise(count: int) -> None:
    """Flat, peaked and in between: cutting tokens out of reach changes nothing, nor does the order of equals."""
    generator, tokens = np.random.default_rng(0), np.arange(1500)
    for position, spread in enumerate([0.0, 0.5, 2.0, 20.0]):
        law = Law(tokens, generator.standard_normal(tokens.size) * spread)
        whole = np.argsort(-(law.scores + gumbel(6, position, tokens)), kind="stable")[:count]
        assert draw_several(law, count, 6, position, Stream.SHARED) == tuple(whole.tolist())
    assert Law(tokens, np.zeros(1500)).likeliest(3) == (0, 1, 2)


def test_what_is_left_of_a_law() -> None:
    left = Q.without([0, 2])
    assert left.tokens.tolist() == [1, 3]
    assert left.p == pytest.approx([0.75, 0.25])
    peaked = Law(np.arange(3), np.array([0.0, -2000.0, -2001.0]))
    assert peaked.p.tolist() == [1, 0, 0]
    assert peaked.without([0]).p == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]), "mass that float64 cannot hold beside 1"
    weighted = Law.weighted(np.array([2, 5, 7]), np.array([1.0, 0.0, 3.0]))
    assert (weighted.tokens.tolist(), weighted.p.tolist(), np.exp(weighted.log_p).round(12).tolist()) == (
        [2, 7],
        [0.25, 0.75],
        [0.25, 0.75],
    )


def test_a_drafts_laws_leave_earlier_siblings_out() -> None:
    draft = Draft((0, 3, 0, 1), (-1, -1, 0, -1), (Q, Q, Q, Law.point(1)))
    assert [draft.law(node).tokens.tolist() for node in range(4)] == [[0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3], [1]]
    assert draft.law(1).probability(3) == pytest.approx(1 / 6)


def judge_typical(draft: Draft, laws: dict[int, Law]) -> tuple[tuple[int, ...], int]:
    verdict = LOSSY["typical"].judge(lambda node: laws[node], draft, SeededRound(0, 0))
    return verdict.accepted, verdict.tail


def test_typical_keeps_the_longest_path_of_likely_tokens() -> None:
    """Probability 0.1 is enough (ε = 0.09), 0.08 is not unless the law is flat; the tail is the target's."""
    law = Law.of([0.82, 0.1, 0.08])
    assert [is_typical(law, token) for token in range(3)] == [True, True, False]
    flat = Law.of(np.ones(50))
    assert is_typical(flat, 7), "0.02 > 0.3·exp(−log 50)"
    draft = Draft((2, 1, 0, 1, 0), (-1, -1, 0, 1, 3))
    assert judge_typical(draft, {-1: law, 1: law, 3: law, 4: Law.point(9)}) == ((1, 3, 4), 9), "node 2 hangs below the unlikely node 0"
    assert judge_typical(draft, {-1: Law.point(0)}) == ((), 0), "greedy: nothing but the best"
    assert judge_typical(Draft.EMPTY, {-1: Law.point(4)}) == ((), 4)


def test_typical_is_not_the_targets_law() -> None:
    """The G-test that the others pass."""
    decoding = Decoding(Markov.random(1), Markov.random(2), PLAIN, "typical", draft_len=2, width=2)
    texts = [decoding.text(seed, 2) for seed in range(1000)]
    assert g_test(texts, law_of_text(decoding.target, PLAIN, 2)) < 1e-6
