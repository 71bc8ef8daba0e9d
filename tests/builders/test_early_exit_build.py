"""A target cut in two for early exit: what the manifest says of its parts, what a plan counts, what is refused; both compile for RTX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import head_support
import pytest
from head_support import LAYERS, save_head, save_target
from tiny_checkpoint import save_tiny

from specbuild.builders.build import build
from specbuild.builders.engines import compile_engines
from specbuild.builders.preparation import dry_plan, prepare
from specbuild.builders.store import Store
from specbuild.bundle import LowerPart
from specbuild.errors import PreflightError, RecipeError
from specbuild.recipe import LOWER, Recipe


def recipe(checkpoint: Path, layers: int = 2, precision: str = "int8", speculation: Any = None, **sections: Any) -> Recipe:
    target = {"max_seq_len": 64, "precision": precision}
    exit_ = {"early_exit": {"layers": layers}, "method": "early_exit"}
    document = {"name": "cut", "checkpoint": str(checkpoint), "target": target, "speculation": exit_ | (speculation or {})}
    return Recipe.from_mapping(document | sections, origin="test")


def test_the_target_is_one_engine_of_two_files_and_its_first_layers_are_another(tmp_path: Path) -> None:
    checkpoint = save_target(tmp_path / "target")
    target, lower = build(recipe(checkpoint, 3), store=Store(tmp_path / "store")).bundle.manifest.engines
    assert (target.role, target.num_layers, target.first_layer, target.taps) == ("target", LAYERS, 0, ())
    assert target.lower == LowerPart(file="engines/target.lower/model.onnx", num_layers=3)
    assert (lower.role, lower.file, lower.num_layers, lower.lower, lower.taps) == (LOWER, target.lower.file, 3, None, (3,))
    assert lower.precision == target.precision
    assert lower.kv_bytes_per_token * LAYERS == target.kv_bytes_per_token * 3


def test_hidden_states_come_from_the_part_that_has_them(tmp_path: Path) -> None:
    checkpoint = save_target(tmp_path / "target")
    heads = {"eagle3": {"checkpoint": str(save_head(tmp_path / "eagle3", *head_support.eagle3()))}}
    engines = {
        entry.role: entry
        for entry in build(recipe(checkpoint, speculation={"heads": heads}), store=Store(tmp_path)).bundle.manifest.engines
    }
    assert [*engines] == ["target", LOWER, "eagle3"]
    assert (engines["target"].taps, engines[LOWER].taps) == ((1, 2, 3), (1, 2))


def test_a_draft_of_the_same_weights_is_no_part_of_the_target(tmp_path: Path) -> None:
    plan = dry_plan(recipe(save_target(tmp_path / "target"), precision="int4", speculation={"draft": {"precision": "int4"}}))
    assert [(step.role, step.twin) for step in plan.steps] == [("target", None), ("draft", None), (LOWER, None)]


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_sizes_foretell_those_of_the_parts(precision: str, tmp_path: Path) -> None:
    asked = recipe(save_target(tmp_path / "target"), 1, precision)
    bundle, plan = build(asked, store=Store(tmp_path / "store")).bundle, dry_plan(asked)
    for step in plan.steps:
        folder = bundle.path / "engines" / step.role
        assert (folder / "model.onnx.data").stat().st_size == pytest.approx(step.engine_bytes, rel=0.05), step.role
    assert sum(step.kv_bytes_per_token for step in plan.steps) == bundle.engine("target").kv_bytes_per_token


def test_another_cut_is_another_bundle(tmp_path: Path) -> None:
    checkpoint = save_target(tmp_path / "target")
    assert len({prepare(recipe(checkpoint, layers)).plan.digest for layers in (1, 2, 3)}) == 3


@pytest.mark.parametrize("layers", [LAYERS, 9])
def test_a_cut_that_leaves_nothing_to_verify_with_is_refused(layers: int, tmp_path: Path) -> None:
    checkpoint = save_target(tmp_path / "target")
    with pytest.raises(PreflightError, match=rf"early_exit\.layers is {layers}, but the target .* has 4 layers; set it to 3 or less"):
        dry_plan(recipe(checkpoint, layers))


def test_a_single_layer_cannot_be_cut(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="has a single layer and cannot be cut in two; remove the section"):
        dry_plan(recipe(save_tiny(tmp_path / "target", num_hidden_layers=1), 1))


def test_the_recipe_says_what_the_method_needs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"method 'early_exit' needs an 'early_exit' section; add `early_exit: \{layers: N\}`"):
        recipe(tmp_path, speculation={"early_exit": None})
    with pytest.raises(RecipeError, match=r"speculation\.early_exit\.layers: .*greater than or equal to 1 \(seen: 0\)"):
        recipe(tmp_path, 0)
    assert recipe(tmp_path, speculation={"hybrid_model": "early_exit"}).speculation.roles("hybrid") == (LOWER,)


@pytest.mark.parametrize("precision", ["float16", "int4"])
def test_both_parts_compile_for_rtx_without_a_gpu(precision: str, tmp_path: Path) -> None:
    rtx = {"backend": "tensorrt-rtx", "tensorrt": {"compute_capabilities": ["sm89"], "max_prefill_len": 32}}
    preparation = prepare(recipe(save_target(tmp_path / "target"), 1, precision, **rtx))
    (tmp_path / "staging").mkdir()
    entries = compile_engines(preparation, tmp_path / "staging", lambda message: None)
    assert [entry.role for entry in entries] == ["target", LOWER]
    for entry in entries:
        assert (tmp_path / "staging" / entry.file).read_bytes()[:4] == b"vtrt", entry.role
