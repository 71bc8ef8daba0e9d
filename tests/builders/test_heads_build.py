"""Heads in a bundle: what the manifest says of them, what a plan counts, and that they compile for TensorRT-RTX without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import head_support
import numpy as np
import onnx_ir as ir
import pytest
from head_support import DRAFT_IDS, LAYERS, VOCABULARY, save_head, save_target
from safetensors.numpy import load_file, save_file

from specbuild.builders.build import build
from specbuild.builders.compilers import tensorrt
from specbuild.builders.compilers.base import CompileJob, Role
from specbuild.builders.engines import compile_engines
from specbuild.builders.network.heads import head
from specbuild.builders.preparation import dry_plan, prepare
from specbuild.builders.store import Store
from specbuild.bundle import EngineEntry, Probe
from specbuild.errors import UnsupportedError
from specbuild.recipe import Recipe

RTX = tensorrt.TensorRTCompiler("tensorrt-rtx", gpu=lambda: None)
ROLES = ("mtp", "eagle3", "medusa")


def recipe(folder: Path, precision: str = "int8", **sections: Any) -> Recipe:
    """A target with all three heads, which are written on the first call."""
    if not folder.exists():
        save_target(folder / "target")
        save_head(folder / "mtp", *head_support.mtp("deepseek"))
        save_head(folder / "eagle3", *head_support.eagle3(norms=True))
        save_head(folder / "medusa", *head_support.medusa(), file="medusa_lm_head.safetensors")
    heads = {role: {"checkpoint": str(folder / role), "precision": precision} for role in ROLES}
    target = {"max_seq_len": 64, "precision": precision}
    document = {"name": "tiny", "checkpoint": str(folder / "target"), "target": target, "speculation": {"heads": heads}}
    return Recipe.model_validate(document | sections)


def test_the_manifest_describes_heads_and_taps(tmp_path: Path) -> None:
    asked = recipe(tmp_path / "heads")
    said: list[str] = []

    def probe(folder: Path, entry: EngineEntry, reference: EngineEntry | None) -> Probe:
        return Probe(step_invariant=True, batch_invariant=True, view_invariant=True, step_costs=(), parity=None)

    bundle = build(asked, store=Store(tmp_path / "store"), probe=probe, progress=said.append).bundle
    target, mtp, eagle3, medusa = bundle.manifest.engines
    assert [entry.role for entry in bundle.manifest.engines] == ["target", *ROLES]
    assert (target.taps, mtp.taps, eagle3.taps, medusa.taps) == ((1, 2, 3, LAYERS), (LAYERS,), (1, 2, 3), (LAYERS,))
    assert (target.vocab_size, mtp.vocab_size, eagle3.vocab_size, medusa.vocab_size) == (VOCABULARY, VOCABULARY, 65, VOCABULARY)
    assert (mtp.num_layers, eagle3.num_layers, medusa.num_layers) == (1, 1, 0)
    assert (eagle3.kv_bytes_per_token, medusa.kv_bytes_per_token) == (2 * 2 * 16 * 4, 0)
    assert (target.predictions, medusa.predictions) == (1, 3)
    assert (target.d2t, mtp.d2t, eagle3.d2t) == (None, None, "engines/eagle3/d2t.npy")
    ids = np.load(bundle.path / "engines/eagle3/d2t.npy")
    assert ids.dtype == np.int64
    assert np.array_equal(ids, DRAFT_IDS)
    assert "engines/eagle3/d2t.npy" in bundle.manifest.files
    assert bundle.manifest.checkpoints.keys() == {"target", *ROLES}
    assert all(entry.probe is not None for entry in bundle.manifest.engines)
    assert [message for message in said if message.startswith("measuring")] == [f"measuring the {role}" for role in ("target", *ROLES)]


def test_a_target_drafting_for_itself_has_one_engine_with_taps(tmp_path: Path) -> None:
    heads = {"medusa": {"checkpoint": str(tmp_path / "heads" / "medusa")}}
    asked = recipe(tmp_path / "heads", "int4", speculation={"draft": {}, "heads": heads})
    target, draft, _ = build(asked, store=Store(tmp_path / "store")).bundle.manifest.engines
    assert draft == target.model_copy(update={"role": "draft"})
    assert target.taps == (LAYERS,)


def test_mtp_modules_inside_the_targets_own_checkpoint(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    tensors = load_file(target / "model.safetensors") | head_support.mtp("deepseek")[1]
    save_file(tensors, target / "model.safetensors")
    document = {"name": "own", "checkpoint": str(target), "target": {"max_seq_len": 64}, "speculation": {"heads": {"mtp": {}}}}
    engines = build(Recipe.model_validate(document), store=Store(tmp_path / "store")).bundle.manifest.engines
    assert [(entry.role, entry.taps) for entry in engines] == [("target", (LAYERS,)), ("mtp", (LAYERS,))]


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_sizes_foretell_those_of_real_heads(precision: str, tmp_path: Path) -> None:
    asked = recipe(tmp_path / "heads", precision)
    bundle = build(asked, store=Store(tmp_path / "store")).bundle
    for step in dry_plan(asked).steps:
        folder = bundle.path / "engines" / step.role
        assert (folder / "model.onnx.data").stat().st_size == pytest.approx(step.engine_bytes, rel=0.05), step.role


def test_a_borrowed_embedding_and_head_that_are_tied_are_stored_once(tmp_path: Path) -> None:
    config, tensors = head_support.mtp("mimo")
    save_target(tmp_path / "target")
    heads = {"mtp": {"checkpoint": str(save_head(tmp_path / "head", config, tensors)), "precision": "float32"}}
    document = {"name": "tied", "checkpoint": str(tmp_path / "target"), "target": {"max_seq_len": 64}, "speculation": {"heads": heads}}
    bundle = build(Recipe.model_validate(document), store=Store(tmp_path / "store")).bundle
    weights = sum(tensor.size for tensor in tensors.values()) + VOCABULARY * 64
    assert (bundle.path / "engines/mtp/model.onnx.data").stat().st_size == pytest.approx(4 * weights, rel=0.1)


def test_heads_change_the_digest_by_content(tmp_path: Path) -> None:
    asked = recipe(tmp_path / "heads")

    def digest(changed: Recipe) -> str | None:
        return prepare(changed).plan.digest

    before, heads = digest(asked), asked.speculation.heads
    moved = (tmp_path / "heads" / "eagle3").rename(tmp_path / "moved")
    assert heads.eagle3 is not None
    other = heads.model_copy(update={"eagle3": heads.eagle3.model_copy(update={"checkpoint": str(moved)})})
    asked = asked.model_copy(update={"speculation": asked.speculation.model_copy(update={"heads": other})})
    assert digest(asked) == before, "the same content at another place"
    tensors = load_file(moved / "model.safetensors")
    tensors["fc.weight"][0, 0] += 1
    save_file(tensors, moved / "model.safetensors")
    assert digest(asked) != before
    none = asked.model_copy(update={"speculation": asked.speculation.model_copy(update={"heads": type(heads)()})})
    assert prepare(none).plan.taps == ()


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "int4"])
def test_every_role_compiles_for_rtx_without_a_gpu(precision: str, tmp_path: Path) -> None:
    rtx = {"backend": "tensorrt-rtx", "tensorrt": {"compute_capabilities": ["sm89"], "max_prefill_len": 32}}
    preparation = prepare(recipe(tmp_path / "heads", precision, **rtx))
    (tmp_path / "staging").mkdir()
    entries = compile_engines(preparation, tmp_path / "staging", lambda message: None)
    assert [entry.role for entry in entries] == ["target", *ROLES]
    for entry in entries:
        assert (tmp_path / "staging" / entry.file).read_bytes()[:4] == b"vtrt", entry.role


@pytest.mark.parametrize("role", ROLES)
def test_what_crosses_the_border_is_float32(role: Role, tmp_path: Path) -> None:
    """Whatever the precision inside: a target and a head of different ones can be joined."""
    preparation = prepare(recipe(tmp_path / "heads", "float16", backend="tensorrt-rtx", tensorrt={"compute_capabilities": ["sm89"]}))
    facts, shape = preparation.heads[role], RTX.shape(CompileJob.of(preparation.plan.recipe, role))
    model = head(facts.spec, preparation.weights[role], capacity=shape.graph_capacity, positions=shape.capacity)
    tensorrt.prepare(model, "float16")
    kinds = {value.name: value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    border = {"features", "previous", "hidden", "logits"} & kinds.keys()
    assert {kinds[name] for name in border} == {ir.DataType.FLOAT}
    assert {kinds[name] for name in kinds if str(name).startswith("past_")} <= {ir.DataType.FLOAT16}


def test_a_precision_that_is_not_built_is_refused_in_the_name_of_its_key(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"speculation\.heads\.mtp\.precision: .*'float16'; choose one of float32, int8, int4"):
        prepare(recipe(tmp_path / "heads", "float16", target={"max_seq_len": 64}))
