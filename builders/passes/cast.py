"""Half precision: weights, activations and caches as float16 or bfloat16."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

_TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
_WITHOUT_ROUNDING = {ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.INT4}


class CastFloats(ir.passes.InPlacePass):
    """Every float32 weight, cache and activation → ``dtype``; whatever else goes in or comes out (logits, hidden states) stays float32.

    Only caches never leave the device. The rest meets code of the host, which knows no bfloat16, and one type at the border lets a
    target and a head of different precisions be joined. Inside, types follow the initializers and inputs through the graph.
    Norms still sum in float32: ``RMSNormalization`` has ``stash_type`` 1. Scales of quantised weights are cast too and thereby set the
    type that ``DequantizeLinear`` gives. Weights are cast when the model is saved.
    """

    def __init__(self, dtype: Literal["float16", "bfloat16"]) -> None:
        self.dtype = _TYPES[dtype]

    def requires(self, model: ir.Model) -> None:
        """A float32 graph."""
        kinds = {value.dtype for value in [*model.graph.inputs, *model.graph.initializers.values()]} - _WITHOUT_ROUNDING
        if kinds != {ir.DataType.FLOAT}:
            raise ir.passes.PreconditionError(f"floats must be float32, they are {sorted(map(str, kinds))}: the graph was cast before")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Cast; inside values lose the type that they were given, for it follows from the inputs."""
        graph = model.graph
        for value in [*graph.inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs)]:
            if value.dtype != ir.DataType.FLOAT:
                continue
            value.dtype = self.dtype
            if value.const_value is not None:
                value.const_value = _cast(value.const_value, self.dtype)
        for value in [value for value in graph.inputs if _at_the_border(value) and value.dtype == self.dtype]:
            self._narrow(graph, value)
        for index, value in enumerate(graph.outputs):
            if _at_the_border(value):
                graph.outputs[index] = _widened(graph, value)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """No float32 is left inside, and no other float at the border."""
        for value in [*model.graph.inputs, *model.graph.initializers.values(), *model.graph.outputs]:
            border = (value.is_graph_input() or value.is_graph_output()) and _at_the_border(value)
            if value.dtype == (self.dtype if border else ir.DataType.FLOAT):
                raise ir.passes.PostconditionError(f"{value.name} is {value.dtype}")

    def _narrow(self, graph: ir.Graph, value: ir.Value) -> None:
        """The input ``value`` taken as float32 and cast for all that read it."""
        value.dtype = ir.DataType.FLOAT
        narrow = ir.Value(name=f"{value.name}.narrow", type=ir.TensorType(self.dtype), shape=value.shape)
        value.replace_all_uses_with(narrow)
        cast = ir.node("Cast", [value], attributes={"to": self.dtype}, outputs=[narrow], name=f"{value.name}.cast")
        graph.insert_before(graph[0], cast)


def _at_the_border(value: ir.Value) -> bool:
    """Whether an input or output is none of the caches."""
    assert value.name is not None
    return not value.name.startswith(("past_", "key.", "value."))


def _widened(graph: ir.Graph, narrow: ir.Value) -> ir.Value:
    """A float32 output in place of ``narrow``, under its name."""
    name = narrow.name
    narrow.name = f"{name}.narrow"
    wide = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=narrow.shape)
    graph.append(ir.node("Cast", [narrow], attributes={"to": ir.DataType.FLOAT}, outputs=[wide], name=f"{name}.widen"))
    return wide


def _cast(source: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    def evaluate() -> ir.TensorProtocol:
        return ir.Tensor(source.numpy().astype(dtype.numpy()), dtype=dtype, name=source.name)

    assert isinstance(source.shape, ir.Shape)
    return ir.LazyTensor(evaluate, dtype, source.shape, name=source.name)
