"""Graphs that TensorRT accepts and then computes wrongly, or not at all. Each is refused with what is wrong and where.

``check_graph`` reads our ONNX graph, where the parser would drop something silently; ``check_network`` reads what the
parser made of it; ``check_unused`` what the builder remarked. Attention inputs by index: 0 query, 1 key, 2 value,
3 attn_mask, 4 past_key, 5 past_value, 6 nonpad_kv_seqlen (ONNX opset 24).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import onnx_ir as ir

from specbuild.errors import BuildError

DECOMPOSABLE = "TRT_decomposable"
"""Attribute of an Attention node: TensorRT may split it where no fused kernel fits, as it must in float32."""


def check_graph(model: ir.Model) -> None:
    """Refuse Attention nodes whose meaning the TensorRT parser changes.

    Raises:
        BuildError: a node has no mask, a causal flag, a softcap, a cache of its own or a count of valid positions.
    """
    for node in _attentions(model):
        name = node.name or node.outputs[0].name
        given = [value is not None for value in node.inputs] + [False] * 7
        if not given[3]:
            raise BuildError(
                f"Attention {name!r} has no attn_mask: TensorRT would attend to empty cache positions; give it the [B,1,S,T] bool mask"
            )
        if given[4] or given[5]:
            raise BuildError(
                f"Attention {name!r} has past_key/past_value inputs, which TensorRT rejects; write the cache with TensorScatter"
            )
        if given[6]:
            raise BuildError(
                f"Attention {name!r} uses nonpad_kv_seqlen, which TensorRT drops silently; mask the positions past the length instead"
            )
        if node.attributes.get_int("is_causal", 0):
            raise BuildError(
                f"Attention {name!r} has is_causal=1, which TensorRT aligns upper left: wrong behind a cache; put causality in the mask"
            )
        if node.attributes.get_float("softcap", 0.0):
            raise BuildError(f"Attention {name!r} has a softcap, which TensorRT rejects; this graph needs attention in single operators")


def check_network(trt: ModuleType, network: Any, model: ir.Model) -> None:
    """Refuse a parsed network that would give wrong results or no plan.

    Raises:
        BuildError: an attention without mask, an attention in float32 that may not be decomposed, or a cache output
            that is not its own input updated in place.
    """
    decomposable = all(DECOMPOSABLE in node.attributes for node in _attentions(model))
    written: dict[str, str] = {}  # output of a cache update → the cache that it updates
    for layer in _layers(network):
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            if layer.num_inputs < 4 or layer.get_input(3) is None:
                raise BuildError(f"TensorRT's attention layer {layer.name!r} has no mask: the plan would attend to empty positions")
            if layer.get_input(0).dtype == trt.DataType.FLOAT and not decomposable:
                raise BuildError(
                    f"TensorRT has no float32 attention for {layer.name!r}; mark the node {DECOMPOSABLE}=1 or use precision float16"
                )
        elif layer.type == trt.LayerType.KV_CACHE_UPDATE:
            written[layer.get_output(0).name] = layer.get_input(0).name
    for index in range(network.num_outputs):
        output = network.get_output(index).name
        past = past_of(output)
        if past is not None and written.get(output) != past:
            raise BuildError(
                f"output {output!r} is not {past!r} updated in place (but {written.get(output)!r}): the cache would not be written; "
                f"{output!r} must come straight from a TensorScatter of {past!r}"
            )


def check_unused(inputs: list[str]) -> None:
    """Refuse a plan that ignores an input.

    Raises:
        BuildError: naming the inputs.
    """
    if inputs:
        raise BuildError(
            f"TensorRT reports unused inputs ({', '.join(inputs)}): an operator dropped them silently, and the plan would be wrong"
        )


def check_aliases(engine: Any) -> None:
    """Refuse a plan, deserialised, whose cache outputs have memory of their own.

    Raises:
        BuildError: naming the first such output.
    """
    for name in (engine.get_tensor_name(index) for index in range(engine.num_io_tensors)):
        past = past_of(name)
        if past is not None and engine.get_aliased_input_tensor(name) != past:
            raise BuildError(f"the plan's output {name!r} does not alias {past!r}: the cache would be copied on every pass")


def past_of(output: str) -> str | None:
    """The input that a cache output (``key.3``, ``value.3``) updates; None for any other tensor."""
    return f"past_{output}" if output.startswith(("key.", "value.")) else None


def _attentions(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in model.graph.all_nodes() if node.op_type == "Attention")


def _layers(network: Any) -> Iterator[Any]:
    return (network.get_layer(index) for index in range(network.num_layers))
