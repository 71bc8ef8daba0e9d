"""A multi-token-prediction head (DeepSeek-V3, 2412.19437): one more decoder layer on the target's last hidden state.

    h      = features + previous                        one of the two is zeros
    x      = eh_proj [enorm(embedding), hnorm(h)]
    hidden = norm(decoder layer(x))
    logits = head(hidden)

A model's own features are normed, so what the head is fed with when it goes on alone is normed too: in SGLang's DeepSeek and in vLLM's
MiMo and Qwen3-Next. (vLLM's DeepSeek feeds back the stream before the norm; ``hnorm`` makes the two differ by the norm's weight alone.
MiMo's features are the stream before the norm; what it feeds itself with is normed.)
"""

from __future__ import annotations

import onnx_ir as ir

from ..decoder_spec import Weights
from ..head_spec import LayerHead
from .block import embed, layer, lm_head, norm, opening
from .graph import GraphWriter, typed


def mtp(spec: LayerHead, weights: Weights, *, capacity: int | None, positions: int) -> ir.Model:
    """The float32 graph of ``spec``, with the signature of ``specbuild.bundle.EngineEntry``; arguments as in ``decoder``."""
    graph, hidden = GraphWriter(), spec.hidden_size
    start = opening(graph, spec.layer, capacity=capacity, positions=positions)
    features = graph.input("features", ir.DataType.FLOAT, ["B", "S", hidden])
    previous = graph.input("previous", ir.DataType.FLOAT, ["B", "S", hidden])

    if spec.stream_features:
        features = graph.one("Mul", features, graph.weight("feature_scale", [hidden], lambda: weights.read("feature_scale")))
    h = norm(graph, spec.layer, weights, "hidden_norm", graph.one("Add", features, previous))
    token = norm(graph, spec.layer, weights, "embedding_norm", embed(graph, spec.layer, weights, start.tokens))
    both = graph.one("Concat", token, h, axis=-1)
    x = graph.linear(both, "eh_proj", (hidden, 2 * hidden), lambda: weights.read("eh_proj"))
    x, key, value = layer(graph, spec.layer, weights, 0, x, start.inputs)

    x = norm(graph, spec.layer, weights, "norm", x)
    logits = lm_head(graph, spec.layer, weights, graph.one("GatherND", x, start.rows, batch_dims=1), spec.vocab_size)
    return graph.model("mtp", [logits, typed(x, "hidden", ir.DataType.FLOAT, ["B", "S", hidden]), key, value])
