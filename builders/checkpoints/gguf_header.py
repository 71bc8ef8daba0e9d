"""The header of a GGUF file: metadata, and where each tensor lies.

The ``gguf`` library's own reader makes an array view for every string of a vocabulary (1.6 s for 49,000 tokens) and
loops as long as a corrupt length says; this one is bounded by the file and takes a tenth of it.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from specbuild.errors import CheckpointError, UnsupportedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies in the file and how it is encoded."""

    shape: tuple[int, ...]
    """Outermost dimension first, as NumPy has it."""
    type: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class GgufHeader:
    """All of a GGUF file but its data."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of ``path`` and check that the data it describes lies within the file.

    Raises:
        CheckpointError: the file is missing, truncated or corrupt.
        UnsupportedError: it is of another GGUF version or byte order, or holds a tensor type that is not known.
    """
    size = path.stat().st_size
    if size < 24:
        raise CheckpointError(f"{path}: truncated: {size} bytes, a GGUF header has at least 24; download it again")
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        if data[:4] != MAGIC:
            raise CheckpointError(f"{path}: not a GGUF file (it starts with {data[:4]!r}); download it again")
        cursor.skip(4)
        version = cursor.scalar("I")
        if version not in VERSIONS:
            raise UnsupportedError(
                f"{path}: GGUF version {version} is not supported; supported: {', '.join(map(str, VERSIONS))}, little-endian"
            )
        tensor_count, entry_count = cursor.scalar("Q"), cursor.scalar("Q")
        try:
            metadata = dict(cursor.entry() for _ in range(entry_count))
            infos = [cursor.tensor() for _ in range(tensor_count)]
            alignment = int(metadata.get("general.alignment", 32))
            start = -(-cursor.position // alignment) * alignment
        except (struct.error, ValueError, ArithmeticError) as error:
            raise CheckpointError(
                f"{path}: truncated or corrupt in its header, at byte {cursor.position} of {size} ({error}); download it again"
            ) from error
    return GgufHeader(metadata, {name: _placed(path, name, shape, code, start + offset, size) for name, shape, code, offset in infos})


def _placed(path: Path, name: str, shape: tuple[int, ...], code: int, offset: int, file_size: int) -> GgufTensor:
    try:
        kind = GGMLQuantizationType(code)
    except ValueError:
        raise UnsupportedError(f"{path}: tensor {name} has an unknown type ({code}); quantise the model to Q8_0 or Q4_K") from None
    block, width = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block:
        raise CheckpointError(
            f"{path}: tensor {name} has shape {list(shape)}, {kind.name} needs rows of whole blocks of {block}; download it again"
        )
    size = prod(shape) // block * width
    if offset + size > file_size:
        raise CheckpointError(f"{path}: truncated: tensor {name} ends at byte {offset + size}, the file has {file_size}; download it again")
    return GgufTensor(shape, kind, offset, size)


class _Cursor:
    """Reads little-endian values one after the other; past the end is a struct.error or a ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def skip(self, count: int) -> None:
        self.position += count

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def scalars(self, code: str, count: int) -> list[Any]:
        width = struct.calcsize(f"<{code}")
        self._within(count * width)
        values = list(struct.unpack_from(f"<{count}{code}", self.data, self.position))
        self.position += count * width
        return values

    def string(self) -> str:
        length = self.scalar("Q")
        self._within(length)
        raw = self.data[self.position : self.position + length]
        self.position += length
        return raw.decode("utf-8")

    def value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is not GGUFValueType.ARRAY:
            return self.scalar(SCALARS[kind])
        item, count = GGUFValueType(self.scalar("I")), self.scalar("Q")
        if item in SCALARS:
            return self.scalars(SCALARS[item], count)
        return [self.value(item) for _ in range(count)]

    def entry(self) -> tuple[str, Any]:
        key = self.string()
        return key, self.value(GGUFValueType(self.scalar("I")))

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (outermost first), type code, offset from the start of the data."""
        name = self.string()
        dimensions = self.scalars("Q", self.scalar("I"))
        return name, tuple(reversed(dimensions)), self.scalar("I"), self.scalar("Q")

    def _within(self, count: int) -> None:
        if self.position + count > len(self.data):
            raise ValueError(f"{count} bytes wanted, {len(self.data) - self.position} left")
