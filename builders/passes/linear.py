"""Linear layers as passes see them: the MatMuls that the network marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..network.graph import LINEAR, TIED_TO


@dataclass(frozen=True)
class LinearLayer:
    """A marked MatMul and its weight."""

    name: str
    node: ir.Node
    weight: ir.Value
    """[K,N] initializer, or the output of the DequantizeLinear that makes it."""
    tied_to: str | None
    """Name of the initializer that the weight is the transpose of."""

    @property
    def of_an_expert(self) -> bool:
        """It is given as many rows as chose the expert, whatever the pass has."""
        return ".experts." in self.name


def linear_layers(model: ir.Model) -> Iterator[LinearLayer]:
    """The linear layers of ``model``, in graph order."""
    for node in model.graph:
        if node.op_type == "MatMul" and LINEAR in node.metadata_props:
            weight = node.inputs[1]
            assert weight is not None, f"linear layer {node.name} has no weight"
            yield LinearLayer(node.metadata_props[LINEAR], node, weight, node.metadata_props.get(TIED_TO))


def require_float_weights(model: ir.Model) -> None:
    """Refuse a model whose linear layers are missing or already quantised.

    Raises:
        ir.passes.PreconditionError: naming the layer.
    """
    layers = list(linear_layers(model))
    if not layers:
        raise ir.passes.PreconditionError("the graph has no MatMul that is marked as a linear layer")
    for layer in layers:
        if layer.weight.const_value is None or layer.weight.dtype != ir.DataType.FLOAT:
            raise ir.passes.PreconditionError(f"linear layer {layer.name} has no float32 weight: it was quantised or cast before")


def integers(graph: ir.Graph, name: str, *values: int) -> ir.Value:
    """A new initializer: a vector of int64."""
    tensor = ir.Tensor(np.array(values, np.int64), name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    graph.register_initializer(value)
    return value
