"""The ONNX Runtime compiler: files, limits and refusals."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
from decoder_support import RandomWeights, compile_cpu, job, open_session, recipe, tiny_spec

from specbuild.builders.compilers.base import BACKENDS, CompileJob, EngineShape, compiler
from specbuild.builders.network.decoder import decoder
from specbuild.builders.passes.tensorrt import MarkForTensorRT
from specbuild.errors import BuildError, UnsupportedError
from specbuild.recipe import Backend, Precision


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_an_engine_is_a_graph_and_its_data(precision: Precision, tmp_path: Path) -> None:
    spec = tiny_spec()
    engine = compile_cpu(spec, RandomWeights(spec), precision, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert engine.file == "model.onnx"
    # 256 tokens and a padded step of 12, to the next 64.
    wide = {"row_multiple": 2, "weight_block": 128} if precision == "int8" else {}
    assert engine.shape == EngineShape(static_view=False, capacity=320, max_step=12, max_prefill=512, kv_dtype="float32", **wide)
    inputs = [value.name for value in open_session(tmp_path / engine.file).get_inputs()]
    assert inputs[:5] == ["input_ids", "position_ids", "write_index", "attention_mask", "logit_rows"]


def test_integer_engines_are_smaller(tmp_path: Path) -> None:
    spec, sizes = tiny_spec(num_layers=4, vocab_size=64), {}
    for precision in ("float32", "int8", "int4"):
        folder = tmp_path / precision
        folder.mkdir()
        compile_cpu(spec, RandomWeights(spec), precision, folder)
        sizes[precision] = (folder / "model.onnx.data").stat().st_size
    assert sizes["int4"] < 0.7 * sizes["int8"] < 0.35 * sizes["float32"]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    spec, contents = tiny_spec(), []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        compile_cpu(spec, RandomWeights(spec), "int4", tmp_path / name)
        contents.append([path.read_bytes() for path in sorted((tmp_path / name).iterdir())])
    assert contents[0] == contents[1]


def test_a_job_is_what_the_recipe_says() -> None:
    pair = recipe(
        target={"precision": "int8", "max_batch_size": 3, "max_seq_len": 500},
        speculation={"max_draft_len": 5, "draft": {"precision": "int4"}},
    )
    target, draft = CompileJob.of(pair, "target"), CompileJob.of(pair, "draft")
    assert (target.precision, draft.precision) == ("int8", "int4")
    assert (target.max_batch_size, target.max_seq_len, target.max_draft_len) == (3, 500, 5)
    assert (draft.max_batch_size, draft.max_seq_len, draft.max_draft_len) == (3, 500, 5)
    shape = compiler("onnxruntime").shape(target)
    assert (shape.capacity, shape.max_step, shape.graph_capacity) == (512, 6, None)


def test_half_precision_is_refused_before_any_work() -> None:
    onnx_compiler = compiler("onnxruntime")
    with pytest.raises(UnsupportedError, match=r"target\.precision: .*'float16'; choose one of float32, int8, int4") as refusal:
        onnx_compiler.check(recipe(target={"precision": "float16"}))
    assert refusal.value.exit_code == 2
    with pytest.raises(UnsupportedError, match=r"speculation\.draft\.precision: .*'bfloat16'"):
        onnx_compiler.check(recipe(speculation={"draft": {"precision": "bfloat16"}}))
    onnx_compiler.check(recipe())


def test_what_onnxruntime_refuses_is_a_build_error(tmp_path: Path) -> None:
    spec = tiny_spec()
    model = decoder(spec, RandomWeights(spec), capacity=None, positions=320)
    MarkForTensorRT()(model)  # an attribute that this library's schema does not know
    with pytest.raises(BuildError, match=r"model\.onnx: onnxruntime .* refuses the engine: .*TRT_decomposable"):
        compiler("onnxruntime").compile(model, job("float32"), tmp_path)


def test_a_folder_that_cannot_be_written_is_a_build_error(tmp_path: Path) -> None:
    spec = tiny_spec()
    with pytest.raises(BuildError, match="cannot be written"):
        compile_cpu(spec, RandomWeights(spec), "float32", tmp_path / "absent")


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_has_a_compiler_of_its_name(backend: Backend) -> None:
    assert compiler(backend).name == backend


def test_version_is_the_librarys() -> None:
    assert compiler("onnxruntime").version() == onnxruntime.__version__
