"""A graph being written: operators, shared constants, and weights that are read only when the graph is saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

OPSET = 24  # the first with TensorScatter
IR_VERSION = 11

LINEAR = "specbuild.linear"
"""Metadata key of a MatMul whose second input is the weight of a linear layer; the value is the layer's name."""
TIED_TO = "specbuild.tied_to"
"""Metadata key of a linear MatMul whose weight is the transpose of another initializer; the value is that one's name."""

Attribute = int | float | str | Sequence[int]


class GraphWriter:
    """Collects nodes and initializers in the order in which they are asked for."""

    def __init__(self) -> None:
        self._tape = ir.tape.Tape()
        self._inputs: list[ir.Value] = []
        self._constants: dict[tuple[int, ...], ir.Value] = {}

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        """A new input of the graph."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self._inputs.append(value)
        return value

    def op(self, kind: str, *inputs: ir.Value, name: str | None = None, outputs: int = 1, **attributes: Attribute) -> tuple[ir.Value, ...]:
        """The outputs of a new node; ``name`` names the node and, when there is one output, its value."""
        values = [ir.Value(name=name if outputs == 1 else None) for _ in range(outputs)]
        return tuple(self._tape.op_multi_out(kind, inputs, attributes=attributes, outputs=values, name=name))

    def one(self, kind: str, *inputs: ir.Value, name: str | None = None, **attributes: Attribute) -> ir.Value:
        """The only output of a new node."""
        return self.op(kind, *inputs, name=name, outputs=1, **attributes)[0]

    def integers(self, *values: int) -> ir.Value:
        """A constant vector of int64, one initializer for equal vectors."""
        if values not in self._constants:
            name = "integers." + "_".join(map(str, values))
            self._constants[values] = self._tape.initializer(ir.Tensor(np.array(values, np.int64), name=name))
        return self._constants[values]

    def weight(self, name: str, shape: Sequence[int], read: Callable[[], NDArray[np.float32]]) -> ir.Value:
        """A float32 initializer; its content ``read()`` is asked for when it is saved and not kept: a build holds one at a time."""

        def evaluate() -> ir.TensorProtocol:
            array = read()
            assert array.shape == tuple(shape), f"{name}: {array.shape} instead of {tuple(shape)}"
            return ir.Tensor(array, name=name)

        return self._tape.initializer(ir.LazyTensor(evaluate, ir.DataType.FLOAT, ir.Shape(shape), name=name))

    def linear(
        self, x: ir.Value, name: str, shape: tuple[int, int], read: Callable[[], NDArray[np.float32]], tied_to: str | None = None
    ) -> ir.Value:
        """x [.., K] · wᵀ as a marked MatMul, where ``read()`` gives w [N, K] as checkpoints store it and ``shape`` is (N, K)."""
        out_features, in_features = shape
        weight = self.weight(f"{name}.weight", (in_features, out_features), lambda: read().T)
        y = self.one("MatMul", x, weight, name=name)
        node = y.producer()
        assert node is not None
        node.metadata_props[LINEAR] = name
        if tied_to is not None:
            node.metadata_props[TIED_TO] = tied_to
        return y

    def model(self, name: str, outputs: Sequence[ir.Value]) -> ir.Model:
        """The finished model."""
        graph = ir.Graph(
            self._inputs,
            outputs,
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": OPSET},
            name=name,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="specbuild")


def typed(value: ir.Value, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
    """``value``, given the name, type and shape that it has as an output of the graph."""
    value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(shape)
    return value
