"""What the graph is made of: its signature, its operators, and weights that are read one at a time."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from decoder_support import RandomWeights, compile_cpu, open_session, tiny_spec

from specbuild.builders.decoder_spec import MoeSpec, RopeSpec
from specbuild.builders.network.attention import rope_tables
from specbuild.builders.network.decoder import decoder
from specbuild.builders.weights import role_shapes
from specbuild.recipe import Precision

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied multi-head": {"tied_head": False, "num_kv_heads": 6},
    "biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "query and key norms": {"qk_norm": True},
    "experts": {"moe": MoeSpec(4, 2, 64, True, (1,))},
    "experts with shares below one": {"moe": MoeSpec(4, 3, 64, False, (0, 1))},
}


@pytest.mark.parametrize("capacity", [None, 128])
@pytest.mark.parametrize("features", FEATURES)
def test_graph_is_standard_onnx(features: str, capacity: int | None) -> None:
    spec = tiny_spec(**FEATURES[features])
    model = decoder(spec, RandomWeights(spec), capacity=capacity, positions=128)
    assert dict(model.graph.opset_imports) == {"": 24}
    assert {node.domain for node in model.graph} == {""}
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize(("capacity", "view"), [(None, "T"), (128, 128)])
def test_signature(capacity: int | None, view: str | int) -> None:
    spec = tiny_spec()
    graph = decoder(spec, RandomWeights(spec), capacity=capacity, positions=128).graph

    def listed(values: Any) -> list[tuple[str, ir.DataType, list[str | int]]]:
        return [(value.name, value.dtype, [d if isinstance(d, int) else d.value for d in value.shape]) for value in values]

    integer, real, cache = ir.DataType.INT64, ir.DataType.FLOAT, ["B", 2, view, 16]
    assert listed(graph.inputs) == [
        ("input_ids", integer, ["B", "S"]),
        ("position_ids", integer, ["B", "S"]),
        ("write_index", integer, ["B"]),
        ("attention_mask", ir.DataType.BOOL, ["B", 1, "S", view]),
        ("logit_rows", integer, ["B", "R"]),
        *((f"past_{kind}.{layer}", real, cache) for layer in range(2) for kind in ("key", "value")),
    ]
    assert listed(graph.outputs) == [
        ("logits", real, ["B", "R", 160]),
        *((f"{kind}.{layer}", real, cache) for layer in range(2) for kind in ("key", "value")),
    ]


def test_a_layer_has_few_nodes() -> None:
    """Each costs microseconds a pass: a layer more adds exactly these."""

    def nodes(layers: int) -> Counter[str]:
        spec = tiny_spec(num_layers=layers)
        return Counter(node.op_type for node in decoder(spec, RandomWeights(spec), capacity=None, positions=8).graph)

    assert nodes(3) - nodes(2) == Counter(
        {
            **{"MatMul": 4, "RMSNormalization": 2, "Add": 2, "Split": 3, "Sigmoid": 1, "Mul": 2},
            **{"Reshape": 4, "Transpose": 2, "RotaryEmbedding": 1, "TensorScatter": 2, "Attention": 1},
        }
    )


def test_rotation_tables() -> None:
    cos, sin = rope_tables(RopeSpec((1.0, 0.25)), 5)
    assert cos.shape == sin.shape == (5, 2)
    assert (cos[0].tolist(), sin[0].tolist()) == ([1.0, 1.0], [0.0, 0.0])
    np.testing.assert_allclose(cos[4], [math.cos(4), math.cos(1)], rtol=1e-6)
    np.testing.assert_allclose(sin[4], [math.sin(4), math.sin(1)], rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_each_weight_is_read_once_and_only_when_it_is_saved(precision: Precision, tmp_path: Path) -> None:
    spec = tiny_spec(tied_head=False, qkv_bias=True, moe=MoeSpec(4, 2, 64, True, (1,)))
    weights = RandomWeights(spec)
    decoder(spec, weights, capacity=None, positions=8)
    assert weights.read_roles == []
    compile_cpu(spec, weights, precision, tmp_path)
    assert Counter(weights.read_roles) == Counter(role_shapes(spec).keys())


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_a_build_holds_one_weight_at_a_time(precision: Precision, tmp_path: Path) -> None:
    spec = tiny_spec(hidden_size=256, intermediate_size=512, num_layers=16, num_heads=16)
    total = 4 * sum(math.prod(shape) for shape in role_shapes(spec).values())
    tracemalloc.start()
    compile_cpu(spec, RandomWeights(spec), precision, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > 30e6
    assert peak < total / 3


def test_a_head_that_is_tied_is_stored_once(tmp_path: Path) -> None:
    sizes = {}
    for tied in (True, False):
        spec = tiny_spec(tied_head=tied, vocab_size=2000)
        folder = tmp_path / str(tied)
        folder.mkdir()
        compile_cpu(spec, RandomWeights(spec), "float32", folder)
        sizes[tied] = (folder / "model.onnx.data").stat().st_size
        assert {value.name for value in open_session(folder / "model.onnx").get_outputs()} >= {"logits"}
    assert sizes[False] - sizes[True] == pytest.approx(4 * 2000 * 96, rel=0.01)
