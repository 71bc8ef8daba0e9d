"""A mixture of experts by standard operators: only the experts that tokens chose are computed.

The n tokens of a pass (all sequences') make n·K choices. Sorted by expert, the rows that an expert has to read lie together, so one
Split hands each expert its own, and an expert that nobody chose gets a matrix without rows, which costs a kernel's start:

    rows [n,H] ─ sorted [n·K,H] ─ Split ─ expert e: [nₑ,H]·gate_up ─ SiLU of all [n·K,I] ─ Split ─ expert e: [nₑ,I]·down ─ unsorted [n,K,H]

Linear layers give a row the same bits whatever rows share the call, and each token adds up its own K rows in the order of its own
choice: so a token's bits depend neither on its neighbours nor on how many tokens share the pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..decoder_spec import DecoderSpec, MoeSpec, Weights
from .graph import GraphWriter

EXPERTS = "specbuild.experts"
"""Metadata key of the nodes that carry rows to the experts and back; the value says which, in the order of the graph:"""
ROUTE, DISPATCH, SPLIT, UNSORT = "route", "dispatch", "split", "unsort"


def mixture(graph: GraphWriter, spec: DecoderSpec, weights: Weights, name: str, x: ir.Value) -> ir.Value:
    """[B,S,H]: for each token of x [B,S,H] the sum of its chosen experts' outputs, each times its share."""
    moe, hidden = spec.moe, spec.hidden_size
    assert moe is not None
    rows = graph.one("Reshape", x, graph.integers(-1, hidden))
    chosen, shares = _route(graph, spec, moe, weights, name, rows)

    flat = graph.one("Reshape", chosen, graph.integers(-1))
    pairs = graph.one("Shape", flat)
    # TopK is stable, so these two are sorted → unsorted place and back.
    order = graph.op("TopK", flat, pairs, outputs=2, axis=0, largest=0)[1]
    place = graph.op("TopK", order, pairs, outputs=2, axis=0, largest=0)[1]
    counts = _counts(graph, moe, flat)

    token = graph.one("Div", order, graph.integers(moe.experts_per_token))
    pieces = _marked(graph.op("Split", graph.one("Gather", rows, token), counts, outputs=moe.experts, axis=0), DISPATCH)
    inner = [_gate_and_up(graph, spec, moe, weights, f"{name}.experts.{e}", piece) for e, piece in enumerate(pieces)]
    both = graph.one("Concat", *inner, axis=0)
    gate, up = graph.op("Split", both, graph.integers(moe.intermediate_size, moe.intermediate_size), outputs=2, axis=-1)
    active = graph.one("Mul", graph.one("Mul", gate, graph.one("Sigmoid", gate)), up)
    parts = _marked(graph.op("Split", active, counts, outputs=moe.experts, axis=0), SPLIT)
    outer = [_down(graph, spec, moe, weights, f"{name}.experts.{e}", part) for e, part in enumerate(parts)]
    (unsorted,) = _marked(graph.op("Gather", graph.one("Concat", *outer, axis=0), place), UNSORT)
    by_token = graph.one("Reshape", unsorted, graph.integers(-1, moe.experts_per_token, hidden))
    # [n,1,K]·[n,K,H]: the same small product for every token, in the order of its choice.
    mixed = graph.one("MatMul", graph.one("Unsqueeze", shares, graph.integers(1)), by_token)
    return graph.one("Reshape", mixed, graph.one("Shape", x))


def _route(graph: GraphWriter, spec: DecoderSpec, moe: MoeSpec, weights: Weights, name: str, rows: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(chosen experts [n,K] int64, shares [n,K]). The router is never quantised: it is small, and rounding it sends tokens elsewhere."""
    router = graph.weight(f"{name}.router.weight", [spec.hidden_size, moe.experts], lambda: weights.read(f"{name}.router").T)
    scores = graph.one("MatMul", rows, router, name=f"{name}.router")
    k = graph.integers(moe.experts_per_token)
    if moe.normalised:  # softmax over the chosen is softmax over all, divided by the sum of the chosen
        best, chosen = _marked(graph.op("TopK", scores, k, outputs=2, axis=-1), ROUTE)
        return chosen, graph.one("Softmax", best, axis=-1)
    shares, chosen = _marked(graph.op("TopK", graph.one("Softmax", scores, axis=-1), k, outputs=2, axis=-1), ROUTE)
    return chosen, shares


def _counts(graph: GraphWriter, moe: MoeSpec, flat: ir.Value) -> ir.Value:
    """How many of the choices [n·K] fall on each expert [E] int64."""
    every = graph.integers(*range(moe.experts))
    hits = graph.one("Equal", graph.one("Unsqueeze", flat, graph.integers(1)), every)
    return graph.one("ReduceSum", graph.one("Cast", hits, to=ir.DataType.INT64), graph.integers(0), keepdims=0)


def _gate_and_up(graph: GraphWriter, spec: DecoderSpec, moe: MoeSpec, weights: Weights, name: str, x: ir.Value) -> ir.Value:
    def read() -> NDArray[np.float32]:
        return np.concatenate([weights.read(f"{name}.gate"), weights.read(f"{name}.up")])

    return graph.linear(x, f"{name}.gate_up", (2 * moe.intermediate_size, spec.hidden_size), read)


def _down(graph: GraphWriter, spec: DecoderSpec, moe: MoeSpec, weights: Weights, name: str, x: ir.Value) -> ir.Value:
    return graph.linear(x, f"{name}.down", (spec.hidden_size, moe.intermediate_size), lambda: weights.read(f"{name}.down"))


def _marked(values: Sequence[ir.Value], part: str) -> Sequence[ir.Value]:
    node = values[0].producer()
    assert node is not None
    node.metadata_props[EXPERTS] = part
    return values
