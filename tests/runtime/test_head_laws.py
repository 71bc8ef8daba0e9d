"""Draft heads on a real tiny target: texts follow the law of its own logits, and a head that says another law than its own is found out."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import head_support
import pytest
from head_support import save_head, save_target

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.recipe import Recipe
from specbuild.runtime.draft import Draft
from specbuild.runtime.generator import Generator
from specbuild.runtime.law import Law
from specbuild.runtime.proposers.growth import Growth

LAWS = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "laws.py"))
HEADS = ("mtp", "eagle3", "medusa")
PROMPT = [65, 66, 67, 32, 68]
DRAWS = 1000
SHAPE = {"temperature": 1.0, "logit_bias": dict.fromkeys((3, 7, 8, 11, 20, 21), 20.0)}
"""Few tokens: those of a head that nobody trained are right often enough to be judged, and to be missed where they are judged wrongly."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("head-laws")
    made = {"mtp": head_support.mtp("deepseek"), "eagle3": head_support.eagle3(), "medusa": head_support.medusa()}
    heads = {role: {"checkpoint": str(save_head(folder / role, *head)), "precision": "float32"} for role, head in made.items()}
    document = {
        "name": "head-laws",
        "checkpoint": str(save_target(folder / "target")),
        "target": {"precision": "float32", "max_batch_size": 64, "max_seq_len": 16},
        "speculation": {"heads": heads, "max_draft_len": 2, "draft_len": 2},
    }
    return build(Recipe.model_validate(document), store=Store(folder / "store")).bundle


@pytest.fixture(scope="module")
def tree(bundle: Bundle) -> Any:
    return LAWS["common_texts"](LAWS["Laws"](bundle, PROMPT, 1).after(LAWS["params_of"](SHAPE, "off")), DRAWS)


def p_value(bundle: Bundle, tree: Any, method: str, rule: str) -> float:
    first = DRAWS * HEADS.index(method)
    texts, tau = LAWS["sample"](Generator(bundle, verification=rule, threads=1), PROMPT, SHAPE, method, range(first, first + DRAWS))
    assert 1.2 < tau < 2.9, "drafts are neither always right nor always wrong"
    cells, p = LAWS["g_test"](texts, tree)
    assert cells > 50
    return float(p)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["coupled", "block"])
@pytest.mark.parametrize("method", HEADS)
def test_texts_of_a_head_follow_the_targets_law(bundle: Bundle, tree: Any, method: str, rule: str) -> None:
    assert p_value(bundle, tree, method, rule) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("method", HEADS)
def test_a_head_that_says_another_law_than_its_own_is_found_out(
    bundle: Bundle, tree: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The planted fault: the laws that a draft carries are flatter than those that its tokens were drawn from."""
    draft = Growth.draft

    def wrong(growth: Growth) -> Draft:
        drafted = draft(growth)
        return replace(drafted, laws=tuple(Law(law.tokens, law.scores / 3) for law in drafted.laws or ()))

    monkeypatch.setattr(Growth, "draft", wrong)
    assert p_value(bundle, tree, method, "block") < 1e-4
