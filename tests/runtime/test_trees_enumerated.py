"""Every rule's output law on trees, by exact enumeration of all that a round can draw and decide."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from enumeration import (
    Shape,
    drafts_of,
    draw_tree,
    enumerate_all,
    error,
    expected_tokens,
    law_of_judging,
    law_of_round,
    laws_along,
    random_model,
)

from specbuild.runtime.acceptance import RULES, Randomness, SeededRound, recursive, rejection, traversal
from specbuild.runtime.draft import Draft
from specbuild.runtime.law import Law

LEAF: Shape = ()
SHAPES: dict[str, Shape] = {
    "two": (LEAF, LEAF),
    "three": (LEAF, LEAF, LEAF),
    "chain": (((LEAF,),),),
    "first deeper": ((LEAF, LEAF), LEAF),
    "side by side": ((LEAF,), (LEAF,)),
    "last deeper": (LEAF, ((LEAF,),)),
    "last wider": (LEAF, (LEAF, LEAF)),
    "2 × 2": ((LEAF, LEAF), (LEAF, LEAF)),
}
DRAWS = {"2 × 2": 3}
"""Of pairs of models; 8 of the smaller shapes."""
EARLY = ("two", "three", "chain", "first deeper", "side by side", "2 × 2")
"""Shapes whose earlier children have as much below them as the later ones."""
TREE_RULES = [name for name, rule in RULES.items() if rule.trees]


@cache
def drafts(shape: str, seed: int, zeros: bool) -> tuple[int, list[tuple[Draft, Any]]]:
    """(depth of the deepest, drafts drawn without replacement with their probabilities)."""
    found = drafts_of(RULES["recursive"], random_model(2 * seed + 1, zeros=zeros), SHAPES[shape])
    return max(draft.depth for draft, _ in found), found


@cache
def emitted(rule: str, shape: str, seed: int, zeros: bool) -> dict[tuple[int, ...], Any]:
    return law_of_judging(RULES[rule], random_model(2 * seed, zeros=zeros), drafts(shape, seed, zeros)[1])


def cases(shape: str) -> list[tuple[int, bool]]:
    return [(seed, zeros) for zeros in (False, True) for seed in range(DRAWS.get(shape, 8))]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", TREE_RULES)
def test_law_on_trees_is_the_targets_with_error_zero(rule: str, shape: str) -> None:
    for seed, zeros in cases(shape):
        law = emitted(rule, shape, seed, zeros)
        assert all(isinstance(probability, Fraction) for probability in law.values())
        assert error(law, random_model(2 * seed, zeros=zeros), drafts(shape, seed, zeros)[0] + 1) == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_traversal_keeps_most(shape: str) -> None:
    """Of the same children traversal keeps at least as many as recursive rejection, which keeps at least as many as target-only: all
    three in every draw, but for the last where a later child has more below it. Recursive rejection favours the first."""
    gains = []
    for case in cases(shape):
        best, middle, least = (expected_tokens(emitted(rule, shape, *case)) for rule in ("traversal", "recursive", "target_only"))
        assert best >= middle
        assert middle >= least or shape not in EARLY
        gains.append((best - middle, middle - least))
    assert max(gain for _, gain in gains) > 0 or shape == "three", "three children of three tokens hold whatever comes"
    assert max(gain for gain, _ in gains) > 0 or shape in ("two", "three"), "one level: there is nothing to look ahead to"


@pytest.mark.parametrize(("tree_rule", "chain_rule"), [("traversal", "block"), ("recursive", "token")])
def test_a_chain_is_judged_as_by_the_rule_for_chains(tree_rule: str, chain_rule: str) -> None:
    for seed in range(6):
        for length in (1, 2, 3) if seed < 2 else (1, 2):
            target, proposer = random_model(2 * seed), random_model(2 * seed + 1)
            ours, theirs = (law_of_round(RULES[rule], target, proposer, length) for rule in (tree_rule, chain_rule))
            assert {text: p for text, p in ours.items() if p} == {text: p for text, p in theirs.items() if p}


@pytest.mark.parametrize("rule", TREE_RULES)
def test_trees_that_nobody_drew_are_exact(rule: str) -> None:
    """No laws are given; and beside drawn children one that was not, with all mass on its token."""
    guessed = Draft((2, 0, 1, 1, 0), (-1, -1, 0, 1, 0))
    for seed in range(10):
        target, q = random_model(seed, zeros=seed % 2 == 1), random_model(seed + 100)(())

        def mixed(randomness: Randomness, q: Law = q) -> Draft:
            """The copied token first: the drawn one is drawn without it."""
            (drawn,) = RULES["recursive"].choose_children(q.without([1]), randomness, 0, 1, 0)
            return Draft((1, drawn, 2), (-1, -1, 1), (Law.point(1), q, Law.point(2)))

        for make in (lambda randomness: guessed, mixed):
            law = enumerate_all(lambda r, make=make, t=target: judged(rule, t, make(r), r))
            assert error(law, target, 3) < 1e-14


def judged(rule: str, target: Any, draft: Draft, randomness: Randomness) -> tuple[int, ...]:
    return RULES[rule].judge(laws_along(target, draft), draft, randomness).tokens


def largest_error(rule: str, change: Callable[[Draft, int], Draft], shape: str = "first deeper") -> Any:
    """Of the output's law over some draws, where the judge is handed each draft changed."""
    errors = []
    for seed in range(4):
        depth, found = drafts(shape, seed, False)
        target = random_model(2 * seed)
        law = law_of_judging(RULES[rule], target, [(change(draft, seed), p) for draft, p in found])
        errors.append(error(law, target, depth + 1))
    return max(errors)


def other_law(draft: Draft, seed: int) -> Draft:
    """q of another model than the one that drew."""
    model = random_model(1000 + seed)
    return Draft(draft.tokens, draft.parents, tuple(model(tuple(draft.tokens[s] for s in draft.path(p))) for p in draft.parents))


def swapped_siblings(draft: Draft, seed: int) -> Draft:
    """The root's children in the other order than they were drawn in."""
    assert draft.parents == (-1, -1, 0, 0)
    (a, b, *below), (qa, qb, *others) = draft.tokens, draft.laws or ()
    return Draft((b, a, *below), (-1, -1, 1, 1), (qb, qa, *others))


def pruned(draft: Draft, seed: int) -> Draft:
    """Without what looks unlikely below the first child."""
    laws = draft.laws or ()
    kept = [node for node in range(len(draft)) if node < 2 or laws[node].probability(draft.tokens[node]) > Fraction(1, 3)]
    return Draft(tuple(draft.tokens[n] for n in kept), tuple(draft.parents[n] for n in kept), tuple(laws[n] for n in kept))


@pytest.mark.parametrize("rule", ["traversal", "recursive"])
@pytest.mark.parametrize("change", [other_law, swapped_siblings, pruned])
def test_a_draft_that_was_not_drawn_as_it_says_is_noticed(rule: str, change: Callable[[Draft, int], Draft]) -> None:
    assert largest_error(rule, lambda draft, seed: draft) == 0
    assert largest_error(rule, change) > Fraction(1, 200)


@pytest.mark.parametrize("rule", ["coupled", "target_only"])
def test_rules_that_need_no_laws_do_not_care(rule: str) -> None:
    assert not RULES[rule].needs_laws
    assert all(largest_error(rule, change) == 0 for change in (other_law, swapped_siblings, pruned))


@pytest.mark.parametrize("rule", ["traversal", "recursive"])
@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (rejection, "residual", lambda p, q, scale: p.p),
        (rejection, "reach", lambda before, p, q, token: min(1, p.probability(token))),
        (Draft, "law", lambda draft, node: draft.laws[node]),
    ],
    ids=["no residual", "q ignored", "siblings left in"],
)
def test_a_wrong_rule_on_trees_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, place: Any, name: str, wrong: Any) -> None:
    monkeypatch.setattr(place, name, wrong)
    assert largest_error(rule, lambda draft, seed: draft) > Fraction(1, 200)


def test_draws_in_common_are_noticed_by_traversal() -> None:
    """Two branches of one depth with one noise: recursive rejection never looks at both, traversal does."""

    def round_of(rule: str, seed: int) -> Any:
        target, proposer = random_model(2 * seed), random_model(999)
        alike = proposer((0,))

        def run(randomness: Randomness) -> tuple[int, ...]:
            top = draw_tree(RULES[rule], proposer, (LEAF, LEAF), randomness)
            (token,) = RULES[rule].choose_children(alike, randomness, 1, 1, 0)
            tree = Draft((*top.tokens, token, token), (-1, -1, 0, 1), (*(top.laws or ()), alike, alike))
            return judged(rule, target, tree, randomness)

        return error(enumerate_all(run), target, 3)

    assert max(round_of("traversal", seed) for seed in range(5)) > Fraction(1, 1000)
    assert max(round_of("recursive", seed) for seed in range(5)) == 0


def test_laws_of_nodes_that_do_not_matter_are_not_asked_for() -> None:
    """A law costs a pass over the vocabulary: leaves that are not kept need none."""
    tree = Draft((0, 1, 2), (-1, -1, 0))
    for judge in (traversal.judge, recursive.judge):
        asked: list[int] = []

        def law_at(node: int, asked: list[int] = asked) -> Law:
            asked.append(node)
            return Law.point(1)

        assert judge(law_at, tree, SeededRound(0, 0)).tokens == (1, 1)
        assert set(asked) == {-1, 1}
