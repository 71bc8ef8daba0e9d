"""An adapter in the lower part of a target: what it changes and what it does not, what a build is named by, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_support import open_session
from head_support import HIDDEN, LAYERS, exit_adapter, save_head, save_target

from specbuild.builders.build import build
from specbuild.builders.engines import compile_engines
from specbuild.builders.preparation import dry_plan, prepare
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.errors import CheckpointError, PreflightError, SpecbuildError, UnsupportedError
from specbuild.recipe import LOWER, Recipe

CUT = 2


def recipe(folder: Path, adapter: Path | None, precision: str = "int8", cut: int = CUT, **sections: Any) -> Recipe:
    checkpoint = folder / "target"
    if not checkpoint.exists():
        save_target(checkpoint)
    exit_ = {"layers": cut, "adapter": None if adapter is None else str(adapter)}
    document = {"name": "cut", "checkpoint": str(checkpoint), "target": {"max_seq_len": 64, "precision": precision}}
    return Recipe.from_mapping(document | {"speculation": {"early_exit": exit_, "method": "early_exit"}} | sections, origin="test")


def said(bundle: Bundle) -> dict[str, Any]:
    """All that the lower part gives out for a few tokens."""
    tokens, position = np.random.default_rng(0).integers(0, 256, (1, 12)), np.arange(12)
    given = {
        "input_ids": tokens,
        "position_ids": position[None],
        "write_index": np.zeros(1, np.int64),
        "attention_mask": (position <= position[:, None])[None, None],
        "logit_rows": position[None],
        **{f"past_{kind}.{layer}": np.zeros((1, 2, 12, 16), np.float32) for layer in range(CUT) for kind in ("key", "value")},
    }
    session = open_session(bundle.path / bundle.engine(LOWER).file)
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, given), strict=True))


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_it_changes_the_logits_of_the_lower_part_alone(precision: str, tmp_path: Path) -> None:
    adapter, store = save_head(tmp_path / "adapter", *exit_adapter(CUT)), Store(tmp_path / "store")
    alone = build(recipe(tmp_path, None, precision), store=store).bundle
    adapted = build(recipe(tmp_path, adapter, precision), store=store).bundle
    before, after = said(alone), said(adapted)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert np.array_equal(value, after[name]) == (name != "logits"), name
    upper = [(bundle.path / "engines/target/model.onnx.data").read_bytes() for bundle in (alone, adapted)]
    assert upper[0] == upper[1]
    assert {*adapted.manifest.checkpoints} == {"target", LOWER, "early_exit"}


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_one_that_has_learned_nothing_is_the_exit_without(precision: str, tmp_path: Path) -> None:
    preparation = prepare(recipe(tmp_path, None))
    config, tensors = exit_adapter(CUT)
    tensors |= {"norm.weight": preparation.weights["target"].read("norm"), "down_proj.weight": np.zeros((HIDDEN, 96), np.float32)}
    adapter, store = save_head(tmp_path / "adapter", config, tensors), Store(tmp_path / "store")
    before, after = (said(build(recipe(tmp_path, some, precision), store=store).bundle) for some in (None, adapter))
    np.testing.assert_array_equal(before["logits"], after["logits"])


@pytest.mark.parametrize("precision", ["float32", "int4"])
def test_its_size_is_foretold(precision: str, tmp_path: Path) -> None:
    plain, adapted = (
        dry_plan(recipe(tmp_path, some, precision)).steps[-1] for some in (None, save_head(tmp_path / "adapter", *exit_adapter(CUT)))
    )
    assert plain.role == adapted.role == LOWER
    assert adapted.parameters - plain.parameters == 2 * 96 * HIDDEN
    asked = recipe(tmp_path, tmp_path / "adapter", precision)
    data = build(asked, store=Store(tmp_path / "store")).bundle.path / "engines" / LOWER / "model.onnx.data"
    assert data.stat().st_size == pytest.approx(adapted.engine_bytes, rel=0.05)


def test_a_bundle_is_named_by_its_content(tmp_path: Path) -> None:
    first = save_head(tmp_path / "first", *exit_adapter(CUT))
    shutil.copytree(first, tmp_path / "copy")
    config, tensors = exit_adapter(CUT)
    other = save_head(tmp_path / "other", config, tensors | {"norm.weight": np.ones(HIDDEN, np.float32)})
    plain, one, copy, another = (prepare(recipe(tmp_path, some)).plan.digest for some in (None, first, tmp_path / "copy", other))
    assert one == copy
    assert len({plain, one, another}) == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": 96}, "hidden_size is 64 in target .* and 96 in the early_exit adapter"),
        ({"num_hidden_layers": 30}, "trained for a target of 30 layers, .* has 4"),
        ({"exit_layer": 3}, "early_exit.layers is 2, but the early_exit adapter .* after 3 layers; set layers to 3, or train one for 2"),
    ],
)
def test_one_of_another_target_or_place_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    adapter = save_head(tmp_path / "adapter", *exit_adapter(CUT, **changes))
    with pytest.raises(PreflightError, match=sentence):
        dry_plan(recipe(tmp_path, adapter))


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    config, tensors = exit_adapter(CUT)
    cases: dict[str, tuple[dict[str, Any], type[SpecbuildError], str]] = {
        "other": (
            {"fc.weight": tensors["up_proj.weight"]},
            CheckpointError,
            "no early_exit adapter is in it .*set speculation.early_exit.adapter",
        ),
        "reduced": (tensors | {"d2t": np.zeros(64, np.int64)}, UnsupportedError, "drafts by the target's own head"),
        "partial": ({"up_proj.weight": tensors["up_proj.weight"]}, CheckpointError, "tensor norm.weight is missing"),
        "biased": (tensors | {"up_proj.bias": np.zeros(96, np.float32)}, UnsupportedError, "up_proj.bias has no place"),
    }
    for name, (stored, error, sentence) in cases.items():
        with pytest.raises(error, match=sentence):
            prepare(recipe(tmp_path, save_head(tmp_path / name, config, stored)))
    with pytest.raises(CheckpointError, match="no such folder"):
        prepare(recipe(tmp_path, tmp_path / "nowhere"))


def test_it_compiles_for_rtx_without_a_gpu(tmp_path: Path) -> None:
    adapter = save_head(tmp_path / "adapter", *exit_adapter(CUT))
    rtx: dict[str, Any] = {"backend": "tensorrt-rtx", "tensorrt": {"compute_capabilities": ["sm89"], "max_prefill_len": 32}}
    preparation = prepare(recipe(tmp_path, adapter, "int4", **rtx))
    (tmp_path / "staging").mkdir()
    entries = compile_engines(preparation, tmp_path / "staging", lambda message: None)
    assert [entry.role for entry in entries] == ["target", LOWER]
    assert all((tmp_path / "staging" / entry.file).read_bytes()[:4] == b"vtrt" for entry in entries)


def test_a_folder_may_be_shipped_or_named_by_a_path(tmp_path: Path) -> None:
    adapter = save_head(tmp_path / "adapter", *exit_adapter(1))
    assert json.loads((adapter / "config.json").read_text())["num_hidden_layers"] == LAYERS
    assert prepare(recipe(tmp_path, adapter, cut=1)).heads["early_exit"].spec.taps == (1,)
