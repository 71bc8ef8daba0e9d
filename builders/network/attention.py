"""Rotary attention over a cache, written so that a row's bits do not depend on how many rows share the pass.

CPU kernels treat a single query row apart from several, and the last bits differ. Here one query row never comes alone:
the G query heads that share a key head become rows of one head (a reshape without a copy),

    query [B, KV·G, S, D]  →  [B, KV, G·S, D]      row g·S + s is query head g of its group at token s,

with the mask repeated G times along its rows, once a pass. With G = 1 a row of zeros is appended instead and its result dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..decoder_spec import DecoderSpec, RopeSpec, Weights
from .graph import GraphWriter, typed

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class PassInputs:
    """What every layer's attention reads, made once a pass."""

    position_ids: ir.Value
    """[B,S]"""
    write_index: ir.Value
    """[B]"""
    mask: ir.Value
    """[B,1,rows,T] bool, rows as ``fold_mask`` makes them."""
    cos: ir.Value
    """[positions, D/2], as ``sin``."""
    sin: ir.Value
    capacity: int | str
    """T: a number when the view is static, else the name of the dimension."""


def rope_tables(rope: RopeSpec, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin [positions, D/2]. The angle is a float32 product, as in the implementations that models are trained with."""
    angle = np.outer(np.arange(positions, dtype=np.float32), np.array(rope.inverse_frequencies, np.float32)).astype(np.float64)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def fold_mask(graph: GraphWriter, spec: DecoderSpec, mask: ir.Value) -> ir.Value:
    """mask [B,1,S,T] → [B,1,G·S,T], or [B,1,S+1,T] when G = 1: the added row sees what the first sees, so it is never empty."""
    groups = spec.num_heads // spec.num_kv_heads
    if groups > 1:
        return graph.one("Concat", *[mask] * groups, name="mask_folded", axis=2)
    first = graph.one("Slice", mask, graph.integers(0), graph.integers(1), graph.integers(2))
    return graph.one("Concat", mask, first, name="mask_folded", axis=2)


def attention(
    graph: GraphWriter, spec: DecoderSpec, weights: Weights, layer: int, x: ir.Value, inputs: PassInputs, *, width: int | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(output [B,S,hidden], key, value): attention of layer ``layer`` over x [B,S,width] and the cache, which gains S positions.

    ``width`` is the hidden size unless given.
    """
    name = f"layers.{layer}"
    heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim

    qkv = graph.linear(x, f"{name}.qkv", ((heads + 2 * kv_heads) * dim, width or spec.hidden_size), lambda: _joined(weights, name, ""))
    if spec.qkv_bias:
        bias = graph.weight(f"{name}.qkv.bias", [(heads + 2 * kv_heads) * dim], lambda: _joined(weights, name, "_bias"))
        qkv = graph.one("Add", qkv, bias)
    # [B,S,(H+2KV)·D] → [B,H+2KV,S,D]: one transpose for all three.
    split_heads = graph.one("Reshape", qkv, graph.integers(0, 0, heads + 2 * kv_heads, dim))
    by_head = graph.one("Transpose", split_heads, perm=[0, 2, 1, 3])
    query, key, value = _rotated(graph, spec, weights, name, by_head, inputs)

    cache_shape: list[int | str] = ["B", kv_heads, inputs.capacity, dim]
    past_key = graph.input(f"past_key.{layer}", _FLOAT, cache_shape)
    past_value = graph.input(f"past_value.{layer}", _FLOAT, cache_shape)
    key = graph.one("TensorScatter", past_key, key, inputs.write_index, name=f"key.{layer}", axis=2, mode="linear")
    value = graph.one("TensorScatter", past_value, value, inputs.write_index, name=f"value.{layer}", axis=2, mode="linear")

    mixed = _attend(graph, spec, query, key, value, inputs.mask)
    merged = graph.one("Reshape", graph.one("Transpose", mixed, perm=[0, 2, 1, 3]), graph.integers(0, 0, heads * dim))
    out = graph.linear(merged, f"{name}.o", (spec.hidden_size, heads * dim), lambda: weights.read(f"{name}.o"))
    if spec.out_bias:
        out = graph.one("Add", out, graph.weight(f"{name}.o.bias", [spec.hidden_size], lambda: weights.read(f"{name}.o_bias")))
    return out, typed(key, f"key.{layer}", _FLOAT, cache_shape), typed(value, f"value.{layer}", _FLOAT, cache_shape)


def _joined(weights: Weights, layer: str, suffix: str) -> NDArray[np.float32]:
    return np.concatenate([weights.read(f"{layer}.{part}{suffix}") for part in "qkv"])


def _rotated(
    graph: GraphWriter, spec: DecoderSpec, weights: Weights, name: str, by_head: ir.Value, inputs: PassInputs
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Query [B,H,S,D] and key [B,KV,S,D], normalised where the model does that and rotated, and value [B,KV,S,D]."""
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    rotation = (inputs.cos, inputs.sin, inputs.position_ids)
    if spec.qk_norm:
        query, key, value = graph.op("Split", by_head, graph.integers(heads, kv_heads, kv_heads), outputs=3, axis=1)
        query = _head_norm(graph, spec, weights, f"{name}.q_norm", query)
        key = _head_norm(graph, spec, weights, f"{name}.k_norm", key)
        return graph.one("RotaryEmbedding", query, *rotation), graph.one("RotaryEmbedding", key, *rotation), value
    both, value = graph.op("Split", by_head, graph.integers(heads + kv_heads, kv_heads), outputs=2, axis=1)
    rotated = graph.one("RotaryEmbedding", both, *rotation)
    query, key = graph.op("Split", rotated, graph.integers(heads, kv_heads), outputs=2, axis=1)
    return query, key, value


def _head_norm(graph: GraphWriter, spec: DecoderSpec, weights: Weights, role: str, x: ir.Value) -> ir.Value:
    scale = graph.weight(f"{role}.weight", [spec.head_dim], lambda: weights.read(role))
    return graph.one("RMSNormalization", x, scale, axis=-1, epsilon=spec.norm_eps)


def _attend(graph: GraphWriter, spec: DecoderSpec, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value) -> ir.Value:
    """[B,H,S,D]: softmax(query·keyᵀ/√D + mask)·value, never over a single query row (see the top of this file)."""
    scale = 1.0 / math.sqrt(spec.head_dim)
    if spec.num_heads > spec.num_kv_heads:
        folded = graph.one("Reshape", query, graph.integers(0, spec.num_kv_heads, -1, spec.head_dim))
        mixed = graph.one("Attention", folded, key, value, mask, scale=scale)
        return graph.one("Reshape", mixed, graph.integers(0, spec.num_heads, -1, spec.head_dim))
    padded = graph.one("Pad", query, graph.integers(0, 0, 0, 0, 0, 0, 1, 0))
    mixed = graph.one("Attention", padded, key, value, mask, scale=scale)
    return graph.one("Slice", mixed, graph.integers(0), graph.integers(-1), graph.integers(2))
