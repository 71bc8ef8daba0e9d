"""What decoders and draft heads are made of beside attention: the inputs of a pass, norms, the MLP, a whole layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..decoder_spec import DecoderSpec, Weights
from .attention import PassInputs, attention, fold_mask, rope_tables
from .graph import GraphWriter, typed
from .moe import mixture


@dataclass(frozen=True)
class Opening:
    """The beginning of a graph with a cache: its inputs, and what every layer makes of them."""

    tokens: ir.Value
    """The input ``input_ids`` [B,S]; of the upper part of a model ``features`` [B,S,hidden], what its lower part made of them."""
    rows: ir.Value
    """[B,R,1], to gather wanted rows by."""
    inputs: PassInputs


def opening(graph: GraphWriter, spec: DecoderSpec, *, capacity: int | None, positions: int) -> Opening:
    """The inputs that all graphs with a cache share, but for the caches, which come with their layers; arguments as in ``decoder``."""
    if spec.first_layer:
        tokens = graph.input("features", ir.DataType.FLOAT, ["B", "S", spec.hidden_size])
    else:
        tokens = graph.input("input_ids", ir.DataType.INT64, ["B", "S"])
    position_ids = graph.input("position_ids", ir.DataType.INT64, ["B", "S"])
    write_index = graph.input("write_index", ir.DataType.INT64, ["B"])
    view: int | str = "T" if capacity is None else capacity
    mask = graph.input("attention_mask", ir.DataType.BOOL, ["B", 1, "S", view])
    logit_rows = graph.input("logit_rows", ir.DataType.INT64, ["B", "R"])
    half = spec.head_dim // 2
    inputs = PassInputs(
        position_ids=position_ids,
        write_index=write_index,
        mask=fold_mask(graph, spec, mask),
        cos=graph.weight("rope.cos", [positions, half], lambda: rope_tables(spec.rope, positions)[0]),
        sin=graph.weight("rope.sin", [positions, half], lambda: rope_tables(spec.rope, positions)[1]),
        capacity=view,
    )
    return Opening(tokens, graph.one("Unsqueeze", logit_rows, graph.integers(-1)), inputs)


def embed(graph: GraphWriter, spec: DecoderSpec, weights: Weights, input_ids: ir.Value) -> ir.Value:
    """Embeddings [B,S,hidden] of input_ids [B,S]."""
    embedding = graph.weight("embedding", [spec.vocab_size, spec.hidden_size], lambda: weights.read("embedding"))
    return graph.one("Gather", embedding, input_ids, name="embed")


def layer(
    graph: GraphWriter, spec: DecoderSpec, weights: Weights, index: int, x: ir.Value, inputs: PassInputs
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(output [B,S,hidden], key, value) of decoder layer ``index`` over x [B,S,hidden]."""
    name = f"layers.{index}"
    mixed, key, value = attention(graph, spec, weights, index, norm(graph, spec, weights, f"{name}.attention_norm", x), inputs)
    x = graph.one("Add", x, mixed)
    feed_forward = mixture if spec.has_experts(index) else gated_mlp
    return graph.one("Add", x, feed_forward(graph, spec, weights, name, norm(graph, spec, weights, f"{name}.mlp_norm", x))), key, value


def lm_head(graph: GraphWriter, spec: DecoderSpec, weights: Weights, x: ir.Value, vocab_size: int) -> ir.Value:
    """Logits [B,R,V] of x [B,R,hidden], as an output of the graph.

    A tied head is an initializer of its own here, because a quantised head and an embedding to gather from have nothing to share; the pass
    ShareHead makes the two one again where weights stay floating point.
    """
    tied = "embedding" if spec.tied_head else None
    logits = graph.linear(x, "head", (vocab_size, spec.hidden_size), lambda: weights.read("head"), tied_to=tied)
    return typed(logits, "logits", ir.DataType.FLOAT, ["B", "R", vocab_size])


def norm(graph: GraphWriter, spec: DecoderSpec, weights: Weights, role: str, x: ir.Value) -> ir.Value:
    scale = graph.weight(f"{role}.weight", [spec.hidden_size], lambda: weights.read(role))
    return graph.one("RMSNormalization", x, scale, name=role, axis=-1, epsilon=spec.norm_eps)


def gated_mlp(graph: GraphWriter, spec: DecoderSpec, weights: Weights, name: str, x: ir.Value) -> ir.Value:
    """down(silu(gate(x)) · up(x)), gate and up as one matrix."""
    inner = spec.intermediate_size

    def gate_and_up(suffix: str = "") -> NDArray[np.float32]:
        return np.concatenate([weights.read(f"{name}.gate{suffix}"), weights.read(f"{name}.up{suffix}")])

    both = graph.linear(x, f"{name}.gate_up", (2 * inner, spec.hidden_size), gate_and_up)
    if spec.mlp_bias:
        both = graph.one("Add", both, graph.weight(f"{name}.gate_up.bias", [2 * inner], lambda: gate_and_up("_bias")))
    gate, up = graph.op("Split", both, graph.integers(inner, inner), outputs=2, axis=-1)
    silu = graph.one("Mul", gate, graph.one("Sigmoid", gate))
    out = graph.linear(graph.one("Mul", silu, up), f"{name}.down", (spec.hidden_size, inner), lambda: weights.read(f"{name}.down"))
    if spec.mlp_bias:
        out = graph.one("Add", out, graph.weight(f"{name}.down.bias", [spec.hidden_size], lambda: weights.read(f"{name}.down_bias")))
    return out
