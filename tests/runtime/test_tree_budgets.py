"""Which trees are allowed where: by the rule, by what the engine verifies, and by what the probe saw of its bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from plain import plainly
from toy_engine import Toys, invariant, toys

from specbuild.bundle import Probe
from specbuild.recipe import ChainRule, SpeculationSection
from specbuild.runtime.acceptance import RULES
from specbuild.runtime.draft import Shape
from specbuild.runtime.intake import Intake
from specbuild.runtime.request import Running
from specbuild.runtime.sampling import SamplingParams

__all__ = ["toys"]
EXACT = invariant()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda toys: SamplingParams(tree_budget=-1), "tree_budget is -1, but must be a whole number, at least 0|tree_budget is -1"),
        (lambda toys: SamplingParams(tree_budget=2, draft_len=4), "tree_budget is 2, below draft_len 4; raise it, or set it to 0"),
        (lambda toys: SamplingParams(tree_budget=2, speculation="off"), "tree_budget is 2, but speculation is 'off'"),
        (lambda toys: SpeculationSection(tree_budget=8), "tree_budget 8 is above max_draft_len 7"),
        (lambda toys: ask(toys, "coupled", tree_budget=9), "tree_budget is 9, but the engine verifies at most 7; raise speculation.max_d"),
        (lambda toys: ask(toys, "block", tree_budget=7), "tree_budget is 7, but verification 'block' judges chains alone"),
        (
            lambda toys: SpeculationSection(tree_budget=7, verification="token"),
            "tree_budget is 7, but verification 'token' judges chains alone; set the former to 0 or use another rule",
        ),
        (
            lambda toys: ask(toys, "coupled", invariant(0.7123), tree_budget=7),
            "tree_budget is 7, but behind rejected siblings the target's logits are up to 0.71 off: trees would change its tokens; "
            "set it to 0 or build the target in float32",
        ),
        (lambda toys: ask(toys, "coupled", invariant(None), tree_budget=7), "was not measured; set it to 0 or build it anew with"),
        (lambda toys: ask(toys, "coupled", None, tree_budget=7), "was not measured; set it to 0 or build it anew with"),
    ],
)
def test_impossible_budgets_are_refused(toys: Toys, make: Callable[[Toys], object], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        make(toys)


def ask(toys: Toys, rule: str, probe: Probe | None = EXACT, **params: Any) -> Running:
    return toys.generator(verification=rule, probe=probe).intake.sequence([1], SamplingParams(max_tokens=9, **params))


def test_a_recipes_budget_is_for_the_rules_that_judge_trees(toys: Toys) -> None:
    generator = toys.generator(verification="block", settings={"tree_budget": 7})
    assert generator.intake.sequence([1], SamplingParams(max_tokens=9)).request.shape == Shape.chain(4)
    assert generator.notes == (
        "tree_budget is 7 in the recipe, but verification 'block' judges chains alone; set it to 0 or use another "
        "rule; until then drafts are chains",
    )
    assert SpeculationSection(tree_budget=7, verification="block", lossy="typical").tree_budget == 7, "the rule in its place judges them"
    assert {name for name, rule in RULES.items() if not rule.trees} == set(get_args(ChainRule))


def judged(toys: Toys, method: str, interactive: bool = False) -> tuple[str, list[bool]]:
    """Of an engine whose logits depend on the siblings that lie before a token, with a recipe that wants trees: the notes, and whether
    each answer is plain decoding's."""
    generator = toys.generator(interactive=interactive, probe=invariant(0.7), settings={"tree_budget": 7})
    params = [SamplingParams(seed=seed, max_tokens=30, ignore_eos=True, speculation=method) for seed in range(9)]
    prompts = [[seed, 2, 3, 2] for seed in range(9)]
    answers = zip(prompts, params, generator.generate(prompts, params), strict=True)
    return "; ".join(generator.notes), [answer.token_ids == plainly(toys.target, generator, p, each).tokens for p, each, answer in answers]


@pytest.mark.parametrize("interactive", [False, True])
@pytest.mark.parametrize("method", ["draft_model", "ngram", "suffix", "hybrid", "cascade", "merged"])
def test_a_target_that_trees_would_change_gets_chains(toys: Toys, method: str, interactive: bool) -> None:
    notes, same = judged(toys, method, interactive)
    assert "tree_budget is 7 in the recipe, but behind rejected siblings" in notes
    assert "until then drafts are chains" in notes
    assert all(same)


@pytest.mark.parametrize("method", ["draft_model", "ngram", "merged"])
def test_a_tree_where_none_is_allowed_is_found_out(toys: Toys, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "against_trees", None)
    assert not all(judged(toys, method)[1])


def test_where_trees_are_a_matter_of_rounding_a_note_says_so(toys: Toys) -> None:
    assert toys.generator(probe=invariant(8e-5), settings={"tree_budget": 7}).notes == (
        "behind rejected siblings the target's logits are up to 8e-05 off: a tree may change a token where two are as close as that",
    )
    assert toys.generator(probe=invariant(8e-5)).notes == ()
    assert "not measured" in toys.generator(probe=None, settings={"tree_budget": 7}).notes[-1]
