"""Half precision: weights, activations and caches as float16 or bfloat16."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

_TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


class CastFloats(ir.passes.InPlacePass):
    """Every float32 weight, cache and activation → ``dtype``; logits come out as float32 all the same.

    Types follow the initializers and inputs through the graph, so nothing but these, the caches' outputs and the logits is touched.
    Norms still sum in float32: ``RMSNormalization`` has ``stash_type`` 1. Scales of quantised weights are cast too and thereby set the
    type that ``DequantizeLinear`` gives. Weights are cast when the model is saved.
    """

    def __init__(self, dtype: Literal["float16", "bfloat16"]) -> None:
        self.dtype = _TYPES[dtype]

    def requires(self, model: ir.Model) -> None:
        """A float32 graph."""
        kinds = {value.dtype for value in model.graph.inputs if value.name is not None and value.name.startswith("past_")}
        if kinds != {ir.DataType.FLOAT}:
            raise ir.passes.PreconditionError(f"caches must be float32, they are {sorted(map(str, kinds))}: the graph was cast before")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Cast; inside values lose the type that they were given, for it follows from the inputs."""
        graph = model.graph
        for value in [*graph.inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs)]:
            if value.dtype != ir.DataType.FLOAT:
                continue
            value.dtype = self.dtype
            if value.const_value is not None:
                value.const_value = _cast(value.const_value, self.dtype)
        self._widen_logits(graph)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """No float32 is left but the logits."""
        for value in [*model.graph.inputs, *model.graph.initializers.values(), *model.graph.outputs]:
            if value.dtype == ir.DataType.FLOAT and value.name != "logits":
                raise ir.passes.PostconditionError(f"{value.name} is still float32")
        if model.graph.outputs[0].dtype != ir.DataType.FLOAT:
            raise ir.passes.PostconditionError("logits are not float32")

    def _widen_logits(self, graph: ir.Graph) -> None:
        narrow = graph.outputs[0]
        assert narrow.name == "logits"
        narrow.name = "logits.narrow"
        wide = ir.Value(name="logits", type=ir.TensorType(ir.DataType.FLOAT), shape=narrow.shape)
        graph.append(ir.node("Cast", [narrow], attributes={"to": ir.DataType.FLOAT}, outputs=[wide], name="logits.widen"))
        graph.outputs[0] = wide


def _cast(source: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    def evaluate() -> ir.TensorProtocol:
        return ir.Tensor(source.numpy().astype(dtype.numpy()), dtype=dtype, name=source.name)

    assert isinstance(source.shape, ir.Shape)
    return ir.LazyTensor(evaluate, dtype, source.shape, name=source.name)
