"""A tied language head that reads the embedding itself."""

from __future__ import annotations

import onnx_ir as ir

from .linear import LinearLayer, integers, linear_layers, require_float_weights


class ShareHead(ir.passes.InPlacePass):
    """logits = hidden · embeddingᵀ by ``Gemm`` with ``transB``, so that a tied weight is stored once.

    A ``Transpose`` of the embedding would be folded into a second copy when the engine is loaded, and a head of its own is a second copy on
    disk: of SmolLM2-135M's float32 engine a fifth. Gemm reads matrices, so hidden [B,R,H] goes through [B·R,H]. A graph without a tied head
    is left as it is.
    """

    def requires(self, model: ir.Model) -> None:
        """Linear layers with float32 weights: integers cannot be shared with a Gather."""
        require_float_weights(model)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace each tied MatMul; the marks of a linear layer go with it."""
        tied = [layer for layer in linear_layers(model) if layer.tied_to is not None]
        for layer in tied:
            _share(model.graph, layer)
        return ir.passes.PassResult(model, modified=bool(tied))

    def ensures(self, model: ir.Model) -> None:
        """No weight is stored twice."""
        for layer in linear_layers(model):
            if layer.tied_to is not None:
                raise ir.passes.PostconditionError(f"linear layer {layer.name} still has its own copy of {layer.tied_to}")


def _share(graph: ir.Graph, layer: LinearLayer) -> None:
    hidden, logits, weight = layer.node.inputs[0], layer.node.outputs[0], layer.weight.name
    assert layer.tied_to is not None
    assert weight is not None
    embedding = graph.initializers[layer.tied_to]
    assert embedding.shape is not None
    vocab, width = embedding.shape.numpy()
    # [B,R,H] → [B·R,H] → [B·R,V] → [B,R,V]
    flat = ir.node("Reshape", [hidden, integers(graph, f"{layer.name}.flat", -1, width)], name=f"{layer.name}.flatten")
    product = ir.node("Gemm", [flat.outputs[0], embedding], attributes={"transB": 1}, name=layer.name)
    rows = ir.node("Shape", [hidden], attributes={"end": 2}, name=f"{layer.name}.rows")
    shape = ir.node("Concat", [rows.outputs[0], integers(graph, f"{layer.name}.vocab", vocab)], attributes={"axis": 0})
    # There may be no rows: a 0 means that, not that the input has the right size.
    restored = ir.node("Reshape", [product.outputs[0], shape.outputs[0]], attributes={"allowzero": 1}, name=f"{layer.name}.restore")
    ir.convenience.replace_nodes_and_values(
        graph, layer.node, [layer.node], [flat, product, rows, shape, restored], [logits], [restored.outputs[0]]
    )
    del graph.initializers[weight]
