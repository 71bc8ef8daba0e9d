"""A decoder as one ONNX graph in standard operators: the only graph there is; what a compiler wants differently is a pass over it."""

from __future__ import annotations

import onnx_ir as ir

from ..decoder_spec import DecoderSpec, Weights
from .block import embed, layer, lm_head, norm, opening
from .graph import GraphWriter, typed


def decoder(spec: DecoderSpec, weights: Weights, *, capacity: int | None, positions: int, taps: tuple[int, ...] = ()) -> ir.Model:
    """The float32 graph of ``spec``, a whole decoder or a part of one, with the signature of ``specbuild.bundle.EngineEntry``.

    Args:
        weights: Read when the model is saved, one tensor at a time.
        capacity: T built into the graph; None leaves it symbolic.
        positions: Rows of the rotation tables; every position id must be below it.
        taps: Hidden states to give out for draft heads, ascending, each once. Tap n below the number of layers L is the residual stream
            that enters layer n, tap L is what comes out of the final norm: the order of transformers' ``hidden_states``. Each is the
            output of a node that is there anyway; without taps the graph is the same as ever. A part has the taps of its own layers,
            and a lower part that of the first layer it lacks.
    """
    graph = GraphWriter()
    start = opening(graph, spec, capacity=capacity, positions=positions)
    x = start.tokens if spec.first_layer else embed(graph, spec, weights, start.tokens)
    caches: list[ir.Value] = []
    states: dict[int, ir.Value] = {}
    for index in spec.layers:
        states[index] = x
        x, key, value = layer(graph, spec, weights, index, x, start.inputs)
        caches += [key, value]

    # Only the wanted rows go through the head, the largest matrix of a small model: [B,S,hidden] → [B,R,hidden].
    end = spec.layers.stop
    if end in taps and not spec.layers_after:  # a head wants every row normed
        states[end] = norm(graph, spec, weights, "norm", x)
        wanted = graph.one("GatherND", states[end], start.rows, batch_dims=1)
    else:
        states[end] = x
        wanted = norm(graph, spec, weights, "norm", graph.one("GatherND", x, start.rows, batch_dims=1))
    outputs = [lm_head(graph, spec, weights, wanted, spec.vocab_size)]
    if taps:
        hidden = graph.one("Concat", *[states[tap] for tap in taps], axis=-1)
        outputs.append(typed(hidden, "hidden", ir.DataType.FLOAT, ["B", "S", spec.hidden_size * len(taps)]))
    return graph.model("decoder", [*outputs, *caches])
