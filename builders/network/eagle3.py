"""An EAGLE-3 head (2503.01840): three hidden states of the target fused into one, beside the embedding of the token that followed.

    h      = fc(features) + previous                    one of the two is zeros, and fc and the norms of zeros are zeros: no select
    attend   [input_layernorm(embedding), hidden_norm(h)]
    x      = h + attention; x += mlp(norm(x))
    logits = head(norm(x))
    hidden = x                                          EAGLE 3.1: norm(x)

``hidden`` is what the head is fed with when it goes on alone.
"""

from __future__ import annotations

import onnx_ir as ir

from ..decoder_spec import Weights
from ..head_spec import LayerHead
from .attention import attention
from .block import embed, gated_mlp, lm_head, norm, opening
from .graph import GraphWriter, typed


def eagle3(spec: LayerHead, weights: Weights, *, capacity: int | None, positions: int) -> ir.Model:
    """The float32 graph of ``spec``, with the signature of ``specbuild.bundle.EngineEntry``; arguments as in ``decoder``."""
    graph, layer, hidden = GraphWriter(), spec.layer, spec.hidden_size
    start = opening(graph, layer, capacity=capacity, positions=positions)
    features = graph.input("features", ir.DataType.FLOAT, ["B", "S", hidden * len(spec.taps)])
    previous = graph.input("previous", ir.DataType.FLOAT, ["B", "S", hidden])

    h = graph.one("Add", _fused(graph, spec, weights, features), previous)
    token = norm(graph, layer, weights, "embedding_norm", embed(graph, layer, weights, start.tokens))
    both = graph.one("Concat", token, norm(graph, layer, weights, "hidden_norm", h), axis=-1)
    mixed, key, value = attention(graph, layer, weights, 0, both, start.inputs, width=spec.attention_width)
    x = graph.one("Add", h, mixed)
    x = graph.one("Add", x, gated_mlp(graph, layer, weights, "layers.0", norm(graph, layer, weights, "layers.0.mlp_norm", x)))

    if spec.normed_hidden:
        x = norm(graph, layer, weights, "norm", x)
    wanted = graph.one("GatherND", x, start.rows, batch_dims=1)
    if not spec.normed_hidden:
        wanted = norm(graph, layer, weights, "norm", wanted)
    logits = lm_head(graph, layer, weights, wanted, spec.vocab_size)
    return graph.model("eagle3", [logits, typed(x, "hidden", ir.DataType.FLOAT, ["B", "S", hidden]), key, value])


def _fused(graph: GraphWriter, spec: LayerHead, weights: Weights, features: ir.Value) -> ir.Value:
    """features [B,S,H·taps] → [B,S,H]."""
    hidden, taps = spec.hidden_size, len(spec.taps)
    if spec.feature_norms:
        parts = graph.op("Split", features, graph.integers(*[hidden] * taps), outputs=taps, axis=-1)
        normed = [norm(graph, spec.layer, weights, f"feature_norms.{index}", part) for index, part in enumerate(parts)]
        features = graph.one("Concat", *normed, axis=-1)
    return graph.linear(features, "fc", (hidden, hidden * taps), lambda: weights.read("fc"))
