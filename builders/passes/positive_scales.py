"""No scale of zero: TensorRT's parser refuses one, though a block of zeros (or one that float16 rounds away) has it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


class PositiveScales(ir.passes.InPlacePass):
    """Each DequantizeLinear scale → at least the smallest positive number of its type, evaluated when the model is saved.

    Nothing changes but by rounding: the integers of an empty block are 0 whatever its scale, and a block whose scale was
    rounded to 0 has weights within 127 of those smallest steps. Runs after any cast, which may round to 0.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Raise the scales."""
        scales = {node.inputs[1] for node in model.graph if node.op_type == "DequantizeLinear"}
        for value in scales:
            assert value is not None
            assert value.const_value is not None, "a scale is an initializer"
            value.const_value = _raised(value.const_value)
        return ir.passes.PassResult(model, modified=bool(scales))


def _raised(source: ir.TensorProtocol) -> ir.TensorProtocol:
    def evaluate() -> ir.TensorProtocol:
        scales = source.numpy()
        smallest = np.nextafter(scales.dtype.type(0), scales.dtype.type(1))
        return ir.Tensor(np.maximum(scales, smallest), dtype=source.dtype, name=source.name)

    assert isinstance(source.shape, ir.Shape)
    return ir.LazyTensor(evaluate, source.dtype, source.shape, name=source.name)
