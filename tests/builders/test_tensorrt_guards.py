"""Graphs that TensorRT would take and compute wrongly: each fault is planted, each is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from tensorrt_support import compile_tiny, only

from specbuild.builders.compilers import tensorrt
from specbuild.errors import BuildError
from specbuild.recipe import Precision


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
