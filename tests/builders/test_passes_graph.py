"""Graph passes: what they ask for, what they leave, and that the numbers say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from decoder_support import RandomWeights, Sequences, open_session, tiny_spec
from numpy.typing import NDArray

from specbuild.builders.network.decoder import decoder
from specbuild.builders.network.graph import GraphWriter, typed
from specbuild.builders.passes.cast import CastFloats
from specbuild.builders.passes.linear import linear_layers
from specbuild.builders.passes.quantize import QuantizeWeights
from specbuild.builders.passes.rounding import quantize_rows
from specbuild.builders.passes.share_head import ShareHead
from specbuild.builders.passes.tensorrt import MarkForTensorRT
from specbuild.errors import UnsupportedError

PRECISIONS: tuple[Literal["int4", "int8"], ...] = ("int4", "int8")


def one_linear(weight: NDArray[np.float32]) -> ir.Model:
    """x [M,K] → y [M,N] by w [N,K]."""
    graph = GraphWriter()
    x = graph.input("x", ir.DataType.FLOAT, ["M", weight.shape[1]])
    y = graph.linear(x, "layer", (weight.shape[0], weight.shape[1]), lambda: weight)
    return graph.model("one", [typed(y, "y", ir.DataType.FLOAT, ["M", weight.shape[0]])])


def tiny_decoder(**changes: object) -> ir.Model:
    spec = tiny_spec(**changes)
    return decoder(spec, RandomWeights(spec), capacity=None, positions=64)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_onnxruntime_reads_the_codes_as_they_were_meant(precision: Literal["int4", "int8"]) -> None:
    """Rows of the unit matrix through the layer give back every weight, so the order of packing and of blocks is right."""
    weight = np.random.default_rng(0).standard_normal((48, 96)).astype(np.float32)
    model = one_linear(weight)
    QuantizeWeights(precision)(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    codes, scales = quantize_rows(weight, 4 if precision == "int4" else 8, 32, signed_scale=True)
    expected = codes * np.repeat(scales, 32, axis=1)
    assert np.array_equal(session.run(None, {"x": np.eye(96, dtype=np.float32)})[0].T, expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_linear_layer_becomes_one_integer_kernel(precision: Literal["int4", "int8"], tmp_path: Path) -> None:
    model = tiny_decoder()
    layers = [layer.name for layer in linear_layers(model)]
    QuantizeWeights(precision)(model)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    kinds = [node.op_type for node in ir.load(tmp_path / "optimised.onnx").graph]
    assert layers[:2] == ["layers.0.qkv", "layers.0.o"]
    assert kinds.count("MatMulNBits") == len(layers) == 4 * 2 + 1
    assert "DequantizeLinear" not in kinds
    assert "MatMul" not in kinds


def test_a_width_that_is_no_multiple_of_the_block_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"layer\.weight: its input width 48 is not a multiple of 32.*floating-point"):
        QuantizeWeights("int4")(one_linear(np.zeros((32, 48), np.float32)))


def test_quantising_needs_float_weights_that_are_marked() -> None:
    model = tiny_decoder()
    QuantizeWeights("int8")(model)
    with pytest.raises(ir.passes.PreconditionError, match=r"layers\.0\.qkv has no float32 weight"):
        QuantizeWeights("int4")(model)
    unmarked = one_linear(np.zeros((32, 32), np.float32))
    for node in unmarked.graph:
        node.metadata_props.clear()
    with pytest.raises(ir.passes.PreconditionError, match="no MatMul that is marked"):
        QuantizeWeights("int4")(unmarked)


def test_a_layer_left_in_floats_is_noticed() -> None:
    class Forgetful(QuantizeWeights):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            return ir.passes.PassResult(model, modified=False)

    with pytest.raises(ir.passes.PostconditionError, match=r"layers\.0\.qkv was not quantised"):
        Forgetful("int4")(tiny_decoder())


def test_sharing_the_head_keeps_the_bits(tmp_path: Path) -> None:
    spec, logits = tiny_spec(), []
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, (2, 7))
    for share in (False, True):
        model = decoder(spec, RandomWeights(spec), capacity=None, positions=64)
        if share:
            assert ShareHead()(model).modified
            assert "head.weight" not in model.graph.initializers
        path = tmp_path / f"{share}.onnx"
        ir.save(model, path)
        logits.append(Sequences(spec, open_session(path), batch=2, view=32).step(tokens, 0, [6, 1, 2]))
    assert logits[0].shape == (2, 3, spec.vocab_size)
    assert np.array_equal(logits[0], logits[1])


def test_an_untied_head_is_not_shared() -> None:
    model = tiny_decoder(tied_head=False)
    assert not ShareHead()(model).modified
    assert "head.weight" in model.graph.initializers


def test_a_quantised_head_cannot_be_shared() -> None:
    model = tiny_decoder()
    QuantizeWeights("int4")(model)
    with pytest.raises(ir.passes.PreconditionError, match="no float32 weight"):
        ShareHead()(model)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cast_leaves_a_sound_graph_of_one_type(dtype: Literal["float16", "bfloat16"], quantized: bool) -> None:
    model = tiny_decoder(qk_norm=True, qkv_bias=True)
    if quantized:
        QuantizeWeights("int4", signed_scale=False)(model)
    before = model.graph.initializers["layers.1.mlp_norm.weight"].const_value
    assert before is not None
    expected = before.numpy()
    CastFloats(dtype)(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    wanted = ir.DataType.FLOAT16 if dtype == "float16" else ir.DataType.BFLOAT16
    graph = model.graph
    assert {value.dtype for value in graph.inputs if value.name and value.name.startswith("past_")} == {wanted}
    assert [value.dtype for value in graph.outputs] == [ir.DataType.FLOAT, *[wanted] * 4]
    after = graph.initializers["layers.1.mlp_norm.weight"].const_value
    assert after is not None
    np.testing.assert_allclose(after.numpy().astype(np.float32), expected, rtol=2**-8)
    with pytest.raises(ir.passes.PreconditionError, match="cast before"):
        CastFloats(dtype)(model)


def test_tensorrt_marks_float32_attention_only() -> None:
    model = tiny_decoder()
    assert MarkForTensorRT()(model).modified
    marked = [node.attributes["TRT_decomposable"].as_int() for node in model.graph if node.op_type == "Attention"]
    assert marked == [1, 1]
    half = tiny_decoder()
    CastFloats("float16")(half)
    assert not MarkForTensorRT()(half).modified


def test_tensorrt_wants_an_explicit_mask() -> None:
    model = tiny_decoder()
    attention = next(node for node in model.graph if node.op_type == "Attention")
    attention.replace_input_with(3, None)
    with pytest.raises(ir.passes.PreconditionError, match="explicit mask"):
        MarkForTensorRT()(model)
    foreign = tiny_decoder()
    for node in foreign.graph:
        node.op_type = "Elsewhere" if node.op_type == "Attention" else node.op_type
    with pytest.raises(ir.passes.PreconditionError, match="a mask and no Attention node"):
        MarkForTensorRT()(foreign)
    causal = tiny_decoder()
    next(node for node in causal.graph if node.op_type == "Attention").attributes.add(ir.AttrInt64("is_causal", 1))
    with pytest.raises(ir.passes.PreconditionError, match="explicit mask"):
        MarkForTensorRT()(causal)
