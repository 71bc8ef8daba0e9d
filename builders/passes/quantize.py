"""Weights of linear layers as integers behind DequantizeLinear, which ONNX Runtime fuses and TensorRT compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from specbuild.errors import UnsupportedError

from .linear import LinearLayer, linear_layers, require_float_weights
from .rounding import Bits, quantize_rows

BLOCK = 32
"""Weights that share a scale unless a compiler wants larger blocks: an input width must be a multiple of it."""
_BITS: dict[str, Bits] = {"int4": 4, "int8": 8}


class QuantizeWeights(ir.passes.InPlacePass):
    """Every linear layer's weight [K,N] → DequantizeLinear(codes [K,N], scales [⌈K/block⌉,N]) along axis 0, symmetric.

    The codes are made when the model is saved, one layer at a time.

    Args:
        precision: ``int4`` (packed two a byte, low nibble first) or ``int8``.
        block: Weights that share a scale, but for experts, which keep to ``BLOCK``. The last block of a layer may be shorter by whole
            ``BLOCK``s.
        signed_scale: See ``rounding.quantize_rows``; False where scales must be positive.
    """

    def __init__(self, precision: Literal["int4", "int8"], *, block: int = BLOCK, signed_scale: bool = True) -> None:
        self.bits: Bits = _BITS[precision]
        self.block = block
        self.signed_scale = signed_scale

    def requires(self, model: ir.Model) -> None:
        """Linear layers with float32 weights."""
        require_float_weights(model)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Raises UnsupportedError when a layer's input width is no multiple of ``BLOCK``."""
        for layer in linear_layers(model):
            self._quantize(model.graph, layer)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Every linear layer reads its weight from a DequantizeLinear."""
        for layer in linear_layers(model):
            producer = layer.weight.producer()
            if producer is None or producer.op_type != "DequantizeLinear":
                raise ir.passes.PostconditionError(f"linear layer {layer.name} was not quantised")

    def _quantize(self, graph: ir.Graph, layer: LinearLayer) -> None:
        name = layer.weight.name
        source = layer.weight.const_value
        assert name is not None
        assert source is not None
        depth, width = source.shape.numpy()
        if depth % BLOCK:
            raise UnsupportedError(
                f"{name}: its input width {depth} is not a multiple of {BLOCK}, the blocks in which int{self.bits} weights "
                "share scales; choose a floating-point precision for this model"
            )
        block = BLOCK if layer.of_an_expert else self.block
        rounded = _RoundedWeight(source, self.bits, block, self.signed_scale)
        code_type = ir.DataType.INT4 if self.bits == 4 else ir.DataType.INT8
        codes = _lazy(graph, f"{name}.codes", code_type, (depth, width), rounded.codes)
        scales = _lazy(graph, f"{name}.scales", ir.DataType.FLOAT, (-(-depth // block), width), rounded.scales)
        dequantize = ir.node(
            "DequantizeLinear",
            [codes, scales],
            attributes={"axis": 0, "block_size": block},
            outputs=[ir.Value(name=f"{name}.dequantized")],
            name=f"{name}.dequantize",
        )
        graph.insert_before(layer.node, dequantize)
        layer.node.replace_input_with(1, dequantize.outputs[0])
        if not layer.weight.uses():
            del graph.initializers[name]


class _RoundedWeight:
    """One rounding of a weight for two tensors: the codes are saved first, and leave the small scales for the second."""

    def __init__(self, source: ir.TensorProtocol, bits: Bits, block: int, signed_scale: bool) -> None:
        self._source, self._bits, self._block, self._signed_scale = source, bits, block, signed_scale
        self._waiting: NDArray[np.float32] | None = None

    def codes(self) -> ir.TensorProtocol:
        codes, self._waiting = self._rounded()
        return _tensor(codes.T, self._bits)

    def scales(self) -> ir.TensorProtocol:
        scales, self._waiting = (self._rounded()[1] if self._waiting is None else self._waiting), None
        return ir.Tensor(np.ascontiguousarray(scales.T))

    def _rounded(self) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        rows = np.ascontiguousarray(self._source.numpy().T)
        return quantize_rows(rows, self._bits, self._block, signed_scale=self._signed_scale)


def _tensor(codes: NDArray[np.int8], bits: Bits) -> ir.TensorProtocol:
    if bits == 8:
        return ir.Tensor(np.ascontiguousarray(codes))
    return ir.Tensor(np.ascontiguousarray(codes).astype(ml_dtypes.int4), dtype=ir.DataType.INT4)


def _lazy(graph: ir.Graph, name: str, dtype: ir.DataType, shape: tuple[int, int], evaluate: Callable[[], ir.TensorProtocol]) -> ir.Value:
    tensor = ir.LazyTensor(evaluate, dtype, ir.Shape(shape), name=name)
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=tensor.shape, const_value=tensor)
    graph.register_initializer(value)
    return value
