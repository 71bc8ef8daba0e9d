"""A target cut in two for early exit: what the manifest says of its parts, what a plan counts, what is refused; both compile for RTX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import head_support
import numpy as np
import onnx_ir as ir
import pytest
from decoder_support import RandomWeights, open_session, tiny_spec
from head_support import LAYERS, save_head, save_target
from tiny_checkpoint import save_tiny

from specbuild.builders.build import build
from specbuild.builders.decoder_spec import DecoderSpec, MoeSpec
from specbuild.builders.engines import compile_engines
from specbuild.builders.network.decoder import decoder
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


@pytest.mark.parametrize(
    "spec",
    [
        tiny_spec(num_layers=3),
        tiny_spec(num_layers=3, tied_head=False, qk_norm=True, qkv_bias=True, sliding_window=5),
        tiny_spec(num_layers=3, moe=MoeSpec(8, 2, 64, True, (0, 2))),
    ],
)
def test_one_part_after_the_other_is_the_whole(spec: DecoderSpec, tmp_path: Path) -> None:
    """Every kind of layer, experts by their layer's number in the whole; the exit's logits are norm and head on its stream."""
    weights, graphs = RandomWeights(spec), {"whole": spec, "lower": spec.lower(1), "upper": spec.upper(1), "head": spec.upper(3)}
    for name, part in graphs.items():
        taps = (1,) if name == "lower" else ()
        ir.save(decoder(part, weights, capacity=None, positions=32, taps=taps), tmp_path / f"{name}.onnx")
    tokens, position = np.random.default_rng(0).integers(0, spec.vocab_size, (1, 12)), np.arange(12)
    mask = (position <= position[:, None]) & (position > position[:, None] - (spec.sliding_window or 12))
    given = {
        "input_ids": tokens,
        "position_ids": position[None],
        "write_index": np.zeros(1, np.int64),
        "attention_mask": mask[None, None],
        "logit_rows": position[None],
        **{f"past_{kind}.{layer}": np.zeros((1, 2, 12, 16), np.float32) for layer in range(3) for kind in ("key", "value")},
    }

    def run(name: str, **more: Any) -> dict[str, Any]:
        session = open_session(tmp_path / f"{name}.onnx")
        taken = {value.name: (given | more)[value.name] for value in session.get_inputs()}
        return dict(zip([output.name for output in session.get_outputs()], session.run(None, taken), strict=True))

    whole, lower = run("whole"), run("lower")
    upper = run("upper", features=lower["hidden"])
    assert {*lower, *upper} == {*whole, "hidden"}
    for name, value in whole.items():
        np.testing.assert_array_equal(value, (upper if name in upper else lower)[name])
    np.testing.assert_array_equal(lower["logits"], run("head", features=lower["hidden"])["logits"])


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
