"""Medusa heads (2401.10774): head k guesses the token k + 1 places after the next one from the target's last hidden state alone."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from ..decoder_spec import Weights
from ..head_spec import MedusaHead
from .graph import GraphWriter, typed


def medusa(spec: MedusaHead, weights: Weights) -> ir.Model:
    """The float32 graph of ``spec``, with the signature of ``specbuild.bundle.EngineEntry``."""
    graph, shape = GraphWriter(), (spec.vocab_size, spec.hidden_size)
    features = graph.input("features", ir.DataType.FLOAT, ["B", "S", spec.hidden_size])
    streams = [_stream(graph, spec, weights, index, features) for index in range(spec.predictions)]
    if spec.shared_head:
        # [B,S,K,H] through one matrix.
        logits = graph.linear(_stacked(graph, streams), "head", shape, lambda: weights.read("head"))
    else:
        logits = _stacked(graph, [_own_head(graph, spec, weights, index, stream) for index, stream in enumerate(streams)])
    return graph.model("medusa", [typed(logits, "logits", ir.DataType.FLOAT, ["B", "S", spec.predictions, spec.vocab_size])])


def _stream(graph: GraphWriter, spec: MedusaHead, weights: Weights, index: int, x: ir.Value) -> ir.Value:
    """x [B,S,H] through the residual blocks of head ``index``."""
    hidden = spec.hidden_size
    for block in range(spec.blocks):
        role = f"blocks.{index}.{block}"
        y = graph.linear(x, role, (hidden, hidden), partial(weights.read, role))
        y = graph.one("Add", y, graph.weight(f"{role}.bias", [hidden], partial(weights.read, f"{role}_bias")))
        x = graph.one("Add", x, graph.one("Mul", y, graph.one("Sigmoid", y)))
    return x


def _own_head(graph: GraphWriter, spec: MedusaHead, weights: Weights, index: int, x: ir.Value) -> ir.Value:
    return graph.linear(x, f"heads.{index}", (spec.vocab_size, spec.hidden_size), lambda: weights.read(f"heads.{index}"))


def _stacked(graph: GraphWriter, values: list[ir.Value]) -> ir.Value:
    """K values [B,S,N] → [B,S,K,N]."""
    return graph.one("Concat", *[graph.one("Unsqueeze", value, graph.integers(2)) for value in values], axis=2)
