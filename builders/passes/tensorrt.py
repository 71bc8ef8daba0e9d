"""What TensorRT's parser wants to be told and ONNX's own schema does not know."""

from __future__ import annotations

import onnx_ir as ir


class MarkForTensorRT(ir.passes.InPlacePass):
    """``TRT_decomposable = 1`` on float32 attention: TensorRT has no fused kernel for it and refuses the node without this.

    ONNX Runtime's schema refuses the attribute, so only a compiler of TensorRT runs this pass, after any cast.
    """

    def requires(self, model: ir.Model) -> None:
        """Attention with an explicit mask everywhere: TensorRT drops every other way of limiting it, or gets it wrong in decode."""
        nodes = _attention_nodes(model)
        if not nodes and any(value.name == "attention_mask" for value in model.graph.inputs):
            raise ir.passes.PreconditionError("the graph has a mask and no Attention node")
        for node in nodes:
            if len(node.inputs) != 4 or node.inputs[3] is None or "is_causal" in node.attributes:
                raise ir.passes.PreconditionError(f"attention node {node.name} is not limited by an explicit mask alone")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Mark; a graph in half precision needs none."""
        nodes = [node for node in _attention_nodes(model) if _cache_type(node) == ir.DataType.FLOAT]
        for node in nodes:
            node.attributes.add(ir.AttrInt64("TRT_decomposable", 1))
        return ir.passes.PassResult(model, modified=bool(nodes))


def _attention_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "Attention"]


def _cache_type(node: ir.Node) -> ir.DataType | None:
    key = node.inputs[1]
    return key.dtype if key is not None else None
