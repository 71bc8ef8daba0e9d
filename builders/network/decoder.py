"""A decoder as one ONNX graph in standard operators: the only graph there is; what a compiler wants differently is a pass over it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..decoder_spec import DecoderSpec, Weights
from .attention import PassInputs, attention, fold_mask, rope_tables
from .graph import GraphWriter, typed


def decoder(spec: DecoderSpec, weights: Weights, *, capacity: int | None, positions: int, taps: tuple[int, ...] = ()) -> ir.Model:
    """The float32 graph of ``spec``, with the signature of ``specbuild.bundle.EngineEntry``.

    Args:
        weights: Read when the model is saved, one tensor at a time.
        capacity: T built into the graph; None leaves it symbolic.
        positions: Rows of the rotation tables; every position id must be below it.
        taps: Hidden states to give out for draft heads, ascending, each once. Tap n below the number of layers L is the residual stream
            that enters layer n, tap L is what comes out of the final norm: the order of transformers' ``hidden_states``. Each is the
            output of a node that is there anyway; without taps the graph is the same as ever.
    """
    graph = GraphWriter()
    input_ids = graph.input("input_ids", ir.DataType.INT64, ["B", "S"])
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
    embedding = graph.weight("embedding", [spec.vocab_size, spec.hidden_size], lambda: weights.read("embedding"))
    x = graph.one("Gather", embedding, input_ids, name="embed")
    caches: list[ir.Value] = []
    states: list[ir.Value] = []
    for layer in range(spec.num_layers):
        states.append(x)
        name = f"layers.{layer}"
        mixed, key, value = attention(graph, spec, weights, layer, _norm(graph, spec, weights, f"{name}.attention_norm", x), inputs)
        caches += [key, value]
        x = graph.one("Add", x, mixed)
        x = graph.one("Add", x, _gated_mlp(graph, spec, weights, name, _norm(graph, spec, weights, f"{name}.mlp_norm", x)))

    # Only the wanted rows go through the head, the largest matrix of a small model: [B,S,hidden] → [B,R,hidden].
    rows = graph.one("Unsqueeze", logit_rows, graph.integers(-1))
    if spec.num_layers in taps:  # a head wants every row normed
        states.append(_norm(graph, spec, weights, "norm", x))
        wanted = graph.one("GatherND", states[-1], rows, batch_dims=1)
    else:
        wanted = _norm(graph, spec, weights, "norm", graph.one("GatherND", x, rows, batch_dims=1))
    # A tied head is an initializer of its own here, because a quantised head and an embedding to gather from have nothing to share;
    # the pass ShareHead makes the two one again where weights stay floating point.
    head = (spec.vocab_size, spec.hidden_size)
    logits = graph.linear(wanted, "head", head, lambda: weights.read("head"), tied_to="embedding" if spec.tied_head else None)
    outputs = [typed(logits, "logits", ir.DataType.FLOAT, ["B", "R", spec.vocab_size])]
    if taps:
        hidden = graph.one("Concat", *[states[tap] for tap in taps], axis=-1)
        outputs.append(typed(hidden, "hidden", ir.DataType.FLOAT, ["B", "S", spec.hidden_size * len(taps)]))
    return graph.model("decoder", [*outputs, *caches])


def _norm(graph: GraphWriter, spec: DecoderSpec, weights: Weights, role: str, x: ir.Value) -> ir.Value:
    scale = graph.weight(f"{role}.weight", [spec.hidden_size], lambda: weights.read(role))
    return graph.one("RMSNormalization", x, scale, name=role, axis=-1, epsilon=spec.norm_eps)


def _gated_mlp(graph: GraphWriter, spec: DecoderSpec, weights: Weights, name: str, x: ir.Value) -> ir.Value:
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
