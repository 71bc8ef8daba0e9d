"""What a tensor of a request or a response may hold: its Triton type and shape, how it is read, how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specbuild.errors import RequestError

Tensor = NDArray[Any]
PREFIXES = {"i": "INT", "u": "UINT", "f": "FP"}


@dataclass(frozen=True)
class Kind:
    """One kind of tensor, one-dimensional."""

    type: str
    """As ``config.pbtxt`` calls it, such as ``TYPE_FP32``."""
    dims: int
    """1: one value; −1: any number of them."""
    read: Callable[[str, Tensor], Any]
    """(name, tensor) → value; raises RequestError that names the tensor."""
    write: Callable[[Any], Tensor]

    @property
    def wire(self) -> str:
        """The type as a request calls it, such as ``FP32``."""
        return {"TYPE_STRING": "BYTES"}.get(self.type, self.type.removeprefix("TYPE_"))


def _only(name: str, tensor: Tensor) -> Any:
    if tensor.size != 1:
        raise RequestError(f"{name} has shape {list(tensor.shape)}, but must hold exactly one value")
    return tensor.reshape(-1)[0]


def _flat(name: str, tensor: Tensor) -> list[Any]:
    if tensor.ndim != 1:
        raise RequestError(f"{name} has shape {list(tensor.shape)}, but must have one dimension")
    return list(tensor)


def _decoded(name: str, value: bytes | str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8: byte {value[error.start]:#04x} at {error.start}; send UTF-8 text") from None


def _number(value: Any) -> float:
    # The shortest decimal that means this float32: 0.9 in a client is 0.9 here, not 0.8999999761581421.
    return float(str(value))


def _json(name: str, tensor: Tensor) -> Any:
    text = _decoded(name, _only(name, tensor))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"{name} is not JSON: {why}; it begins with {text[:40]!r}") from None


def _texts(values: Any) -> Tensor:
    array = np.empty(len(values), dtype=np.object_)
    array[:] = [value.encode("utf-8") for value in values]
    return array


def _array(values: Sequence[Any], dtype: np.dtype[Any]) -> Tensor:
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        for value in values:
            if not bounds.min <= value <= bounds.max:  # numpy before 2 would wrap it
                raise OverflowError(f"{value} is not within {bounds.min} to {bounds.max}")
    return np.array(values, dtype=dtype)


def _numeric(dtype: DTypeLike, convert: Callable[[Any], Any], dims: int) -> Kind:
    of = np.dtype(dtype)
    name = "TYPE_BOOL" if of.kind == "b" else f"TYPE_{PREFIXES[of.kind]}{of.itemsize * 8}"
    if dims == 1:
        return Kind(name, 1, lambda field, tensor: convert(_only(field, tensor)), lambda value: _array([value], of))
    return Kind(name, dims, lambda field, tensor: [convert(v) for v in _flat(field, tensor)], lambda values: _array(list(values), of))


TEXT = Kind("TYPE_STRING", 1, lambda name, tensor: _decoded(name, _only(name, tensor)), lambda value: _texts([value]))
TEXTS = Kind("TYPE_STRING", -1, lambda name, tensor: [_decoded(name, value) for value in _flat(name, tensor)], _texts)
JSON = Kind("TYPE_STRING", 1, _json, lambda value: _texts([json.dumps(value, ensure_ascii=False)]))
FLAG = _numeric(np.bool_, bool, 1)
INTEGER = _numeric(np.int32, int, 1)
INTEGERS = _numeric(np.int32, int, -1)
LONG = _numeric(np.int64, int, 1)
SEED = _numeric(np.uint64, int, 1)
NUMBER = _numeric(np.float32, _number, 1)
NUMBERS = _numeric(np.float32, _number, -1)
