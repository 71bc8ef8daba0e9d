"""On a real engine: texts of every rule follow the law that the target's own logits give, and a wrong rule is found out."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import save_tiny

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.recipe import Recipe
from specbuild.runtime.acceptance import RULES, Randomness, Rule, Verdict, coupled, rejection
from specbuild.runtime.draft import Draft
from specbuild.runtime.generator import Generator
from specbuild.runtime.transforms import LawAt

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "laws.py"))
SAMPLING: Mapping[str, Mapping[str, float]] = SCRIPT["SAMPLING"]
PROMPT = [12, 200, 3, 77]
DRAWS = 4000
ON_CHAINS = ("block", "coupled", "token")
"""Chains tell the rules for trees from these by nothing: test_trees_enumerated.py."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A random target whose laws are peaked, and a draft that is the target with noise in its weights."""
    folder = tmp_path_factory.mktemp("laws")
    target, draft = save_tiny(folder / "target"), save_tiny(folder / "draft")
    tensors = load_file(target / "model.safetensors")
    tensors["model.norm.weight"] *= 2.5
    save_file(tensors, target / "model.safetensors")
    random = np.random.default_rng(1)
    noisy = {name: (tensor * (1 + 0.1 * random.standard_normal(tensor.shape))).astype(np.float32) for name, tensor in tensors.items()}
    save_file(noisy, draft / "model.safetensors")
    document = {
        "name": "laws",
        "checkpoint": str(target),
        "target": {"precision": "float32", "max_batch_size": 64, "max_seq_len": 16},
        "speculation": {"max_draft_len": 2, "draft_len": 2, "draft": {"checkpoint": str(draft), "precision": "float32"}},
    }
    return build(Recipe.model_validate(document), store=Store(folder / "store")).bundle


@pytest.fixture(scope="module")
def trees(bundle: Bundle) -> dict[str, Any]:
    laws = SCRIPT["Laws"](bundle, PROMPT, 1)
    return {name: SCRIPT["common_texts"](laws.after(SCRIPT["params_of"](shape, "off")), DRAWS) for name, shape in SAMPLING.items()}


def p_value(bundle: Bundle, tree: Any, sampling: str, rule: str, method: str = "draft_model", seed: int = 0) -> tuple[float, float]:
    generator = Generator(bundle, verification=rule, threads=1)
    texts, tau = SCRIPT["sample"](generator, PROMPT, SAMPLING[sampling], method, range(seed, seed + DRAWS))
    cells, p = SCRIPT["g_test"](texts, tree)
    assert cells > 50, "the law has to be fine enough to tell"
    return p, tau


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(("rule", "method"), [*((rule, "draft_model") for rule in ON_CHAINS), ("coupled", "off")])
def test_texts_follow_the_targets_law(bundle: Bundle, trees: dict[str, Any], sampling: str, rule: str, method: str) -> None:
    seed = 10_000 * ON_CHAINS.index(rule) + 100_000 * (method == "off")
    p, tau = p_value(bundle, trees[sampling], sampling, rule, method, seed)
    assert p > 0.01
    assert tau == 1 if method == "off" else 1.2 < tau < 2.5, "drafts are neither always right nor always wrong"


def likely_is_good_enough(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    """Not lossless: whatever has a tenth of the mass is accepted."""
    kept = 0
    while kept < len(draft) and law_at(kept - 1).probability(draft.tokens[kept]) > 0.1:
        kept += 1
    return Verdict.of(draft, range(kept), randomness.shared(law_at(kept - 1), kept))


@pytest.fixture
def wrong_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """``coupled`` accepts what is likely; ``token`` and ``block`` draw the tail after a rejection from the law itself."""
    wrong = Rule(coupled.choose_children, likely_is_good_enough, needs_laws=False)
    monkeypatch.setattr("specbuild.runtime.request.RULES", MappingProxyType({**RULES, "coupled": wrong}))
    monkeypatch.setattr(rejection, "residual", lambda p, q, scale: p.p)


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_rules")
@pytest.mark.parametrize("rule", ON_CHAINS)
def test_a_wrong_rule_is_rejected(bundle: Bundle, trees: dict[str, Any], rule: str) -> None:
    p, _ = p_value(bundle, trees["temperature 1"], "temperature 1", rule)
    assert p < 1e-4


def test_cells_are_the_whole_law(bundle: Bundle, trees: dict[str, Any]) -> None:
    for tree in trees.values():
        law = SCRIPT["expected"](tree)
        assert sum(law.values()) == pytest.approx(1)
        assert min(law.values()) >= 0
        first = max(tree[()], key=tree[()].get)
        assert SCRIPT["cell"]((first, -1, -1), tree) == (first,)
        assert SCRIPT["cell"]((-1, -1, -1), tree) == ()
