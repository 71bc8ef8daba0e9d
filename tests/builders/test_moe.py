"""Mixtures of experts: which layers have them, what is refused, what is computed, and what a pass over more tokens reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from decoder_support import RandomWeights, Sequences, compile_cpu, open_session, tiny_spec
from tensorrt_support import RTX, graph, recipe
from tiny_checkpoint import save_tiny

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.compilers.base import CompileJob
from specbuild.builders.decoder_spec import DecoderSpec, MoeSpec
from specbuild.builders.network.decoder import decoder
from specbuild.builders.network.moe import DISPATCH, EXPERTS
from specbuild.builders.passes.dense_experts import DenseExperts
from specbuild.builders.passes.quantize import QuantizeWeights
from specbuild.builders.plan import engine_bytes
from specbuild.builders.weights import CheckpointWeights
from specbuild.errors import CheckpointError, UnsupportedError
from specbuild.recipe import Precision

SMALL: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
SPEC = tiny_spec(moe=MoeSpec(8, 2, 64, True, (0, 1)))


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (0, 1, 2, 3, 4, 5)),
        ({"decoder_sparse_step": 2}, (1, 3, 5)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 3]}, (1, 5)),
        ({"mlp_only_layers": [0, 1, 2, 3, 4, 5]}, ()),
    ],
)
def test_layers_that_have_experts(changes: dict[str, Any], layers: tuple[int, ...]) -> None:
    spec = decoder_spec(SMALL | changes)
    assert spec.moe == MoeSpec(8, 2, 24, False, layers)
    assert [spec.has_experts(layer) for layer in range(6)] == [layer in layers for layer in range(6)]


def test_mixtral_has_experts_in_every_layer_whose_shares_add_up_to_one() -> None:
    config = SMALL | {"model_type": "mixtral", "num_local_experts": 4}
    assert decoder_spec(config).moe == MoeSpec(4, 2, 48, True, (0, 1, 2, 3, 4, 5))


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        (
            {"shared_expert_intermediate_size": 64},
            UnsupportedError,
            "shared_expert_intermediate_size 64 is not supported by family 'qwen3_moe'",
        ),
        ({"n_shared_experts": 1}, UnsupportedError, "n_shared_experts 1 is not supported"),
        ({"num_experts_per_tok": 9}, CheckpointError, "num_experts_per_tok 9 is more than the 8 experts of num_experts"),
        ({"num_experts": None}, CheckpointError, "'num_local_experts' must be a whole number"),
        ({"mlp_only_layers": 3}, CheckpointError, r"'mlp_only_layers' must be a list of layer numbers \(seen: 3\)"),
        ({"model_type": "qwen3"}, UnsupportedError, "num_experts 8 is not supported by family 'qwen3'"),
    ],
)
def test_what_is_not_built_is_refused(changes: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        decoder_spec(SMALL | changes)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(save_tiny(tmp_path / "dense")))
    spec = decoder_spec(checkpoint.config | {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1})
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.block_sparse_moe\.gate\.weight is missing \(expected shape \[2, 64\]\)"):
        CheckpointWeights(checkpoint, spec, family("mixtral"))


def test_experts_touched_by_tokens_that_choose_evenly() -> None:
    moe, random = MoeSpec(16, 3, 64, True, (0,)), np.random.default_rng(0)
    assert moe.touched(1) == pytest.approx(3)
    for tokens in (2, 5, 9):
        drawn = [len({e for _ in range(tokens) for e in random.choice(16, 3, replace=False)}) for _ in range(4000)]
        assert np.mean(drawn) == pytest.approx(moe.touched(tokens), abs=0.1)


def saved(model: ir.Model, folder: Path) -> Path:
    folder.mkdir()
    ir.save(model, folder / "model.onnx", external_data="model.onnx.data")
    return folder / "model.onnx"


def network(spec: DecoderSpec) -> ir.Model:
    return decoder(spec, RandomWeights(spec), capacity=None, positions=64)


def test_an_expert_computes_only_the_rows_that_chose_it(tmp_path: Path) -> None:
    model = network(SPEC)
    pieces = next(node for node in model.graph if node.metadata_props.get(EXPERTS) == DISPATCH).outputs
    for piece in pieces:
        piece.type, piece.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None, 96])
        model.graph.outputs.append(piece)
    session = open_session(saved(model, tmp_path / "model"))

    def rows(tokens: int) -> list[int]:
        """How many rows each expert of the first layer gets of the first ``tokens`` tokens."""
        inputs = {
            "input_ids": np.arange(tokens)[None],
            "position_ids": np.arange(tokens)[None],
            "write_index": np.zeros(1, np.int64),
            "attention_mask": np.tri(tokens, 128, dtype=bool)[None, None],
            "logit_rows": np.zeros((1, 1), np.int64),
        }
        return [len(piece) for piece in session.run([piece.name for piece in pieces], inputs | Sequences(SPEC, session).cache)]

    assert sorted(rows(1)) == [0] * 6 + [1] * 2
    assert sum(rows(9)) == 9 * 2
    assert all(before <= after for before, after in zip(rows(4), rows(9), strict=True))


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_the_size_of_an_engine_is_foretold(precision: Precision, tmp_path: Path) -> None:
    spec = tiny_spec(moe=MoeSpec(8, 2, 64, True, (1,)))
    compiled = compile_cpu(spec, RandomWeights(spec), precision, tmp_path)
    expected = engine_bytes(spec, precision, width=4, positions=compiled.shape.capacity)
    assert (tmp_path / "model.onnx.data").stat().st_size == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("precision", ["float32", "int4"])
@pytest.mark.parametrize("normalised", [True, False])
def test_dense_experts_say_the_same(precision: Literal["float32", "int4"], normalised: bool, tmp_path: Path) -> None:
    spec = tiny_spec(moe=MoeSpec(8, 3, 64, normalised, (0, 1)))
    tokens, logits = np.random.default_rng(0).integers(0, spec.vocab_size, (2, 7)), []
    for dense in (False, True):
        model = network(spec)
        if dense:
            assert DenseExperts()(model).modified
        if precision == "int4":
            QuantizeWeights(precision)(model)
        logits.append(Sequences(spec, open_session(saved(model, tmp_path / str(dense))), batch=2).step(tokens, 0))
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-5)


def test_a_dense_decoder_stays_as_it_is() -> None:
    model = network(tiny_spec())
    nodes = list(model.graph)
    assert not DenseExperts()(model).modified
    assert list(model.graph) == nodes


def test_every_experts_matrix_becomes_one_integer_kernel(tmp_path: Path) -> None:
    model = network(SPEC)
    QuantizeWeights("int4")(model)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    kinds = [node.op_type for node in ir.load(tmp_path / "optimised.onnx").graph]
    assert kinds.count("MatMulNBits") == 2 * (2 + 2 * 8) + 1
    assert kinds.count("MatMul") == 2 * 2, "the router, and the sum of what a token chose"
    assert "DequantizeLinear" not in kinds


@pytest.mark.parametrize("precision", ["float16", "int4"])
def test_experts_compile_for_tensorrt_without_a_gpu(precision: Precision, tmp_path: Path) -> None:
    spec, job = tiny_spec(num_layers=1, moe=MoeSpec(4, 2, 64, True, (0,))), CompileJob.of(recipe(precision), "target")
    compiled = RTX.compile(graph(spec, RandomWeights(spec), job), job, tmp_path)
    assert (tmp_path / compiled.file).read_bytes()[:4] == b"vtrt"
