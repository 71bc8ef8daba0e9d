"""A GGUF file as a checkpoint: its quantised tensors are dequantised as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from specbuild.errors import CheckpointError, UnsupportedError

from .base import Checkpoint, TokenizerFiles
from .folder import read_tokenizer
from .gguf_config import generation_config, hugging_face_config, hugging_face_name, interleaved_heads
from .gguf_header import GgufTensor, read_gguf_header
from .gguf_tokenizer import tokenizer_json

PLAIN: Mapping[GGMLQuantizationType, type] = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: ml_dtypes.bfloat16,
}
BLOCKS = frozenset(
    GGMLQuantizationType[name]
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
)
ROWS_AT_ONCE = 2048
"""Dequantising needs a few times the memory of its result; this many rows of it at a time."""


@dataclass(frozen=True)
class GgufTensors:
    """``TensorStore`` over one GGUF file."""

    path: Path
    entries: Mapping[str, GgufTensor]
    """By Hugging Face name."""
    interleaved: Mapping[str, int]
    """Tensors whose rows are stored for interleaved rotation → their number of heads."""

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.entries))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name].shape

    def read(self, name: str) -> NDArray[np.float32]:
        tensor = _decoded(self.path, self.entries[name])
        heads = self.interleaved.get(name)
        return tensor if heads is None else half_split(tensor, heads)


def open_gguf(path: Path, source: str) -> Checkpoint:
    """Read the header of ``path``; a tokenizer.json beside it is preferred to the vocabulary inside.

    Raises:
        CheckpointError: the file is truncated or corrupt.
        UnsupportedError: a tensor type, the tokenizer or the way the file is split is not read.
    """
    header = read_gguf_header(path)
    parts = header.metadata.get("split.count", 1)
    if parts != 1:
        raise UnsupportedError(f"{path}: one of {parts} parts of a model; join them with `llama-gguf-split --merge`")
    for name, tensor in header.tensors.items():
        if tensor.type not in PLAIN and tensor.type not in BLOCKS:
            known = ", ".join(sorted(kind.name for kind in {*PLAIN, *BLOCKS}))
            raise UnsupportedError(f"{path}: tensor {name} has type {tensor.type.name}; supported: {known}")
    entries = {hugging_face_name(name): tensor for name, tensor in header.tensors.items()}
    factors = header.tensors.get("rope_freqs.weight")
    shapes = {name: tensor.shape for name, tensor in entries.items()}
    try:
        config = hugging_face_config(header.metadata, shapes, None if factors is None else _decoded(path, factors).tolist())
        tokenizer = _tokenizer(path, header.metadata)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # metadata may be anything
        raise CheckpointError(f"{path}: its metadata is inconsistent ({error!r}); convert the model anew") from error
    return Checkpoint(source, config, GgufTensors(path, entries, interleaved_heads(config, entries)), tokenizer)


def _tokenizer(path: Path, metadata: Mapping[str, Any]) -> TokenizerFiles:
    template, generation = metadata.get("tokenizer.chat_template"), generation_config(metadata)
    if not (path.parent / "tokenizer.json").exists():
        return TokenizerFiles(tokenizer_json(metadata, str(path)), template, generation)
    beside = read_tokenizer(path.parent)
    return TokenizerFiles(beside.tokenizer_json, beside.chat_template or template, {**generation, **beside.generation_config})


def half_split(tensor: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of each head from interleaved order (0, D/2, 1, D/2 + 1, …) back to half-split order (0, 1, …, D − 1).

    ``tensor``: [heads·D, …]. llama.cpp stores Llama's queries and keys in the former, for its kind of rotation.
    """
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.shape)


def _decoded(path: Path, tensor: GgufTensor) -> NDArray[np.float32]:
    data = np.fromfile(path, dtype=np.uint8, count=tensor.size, offset=tensor.offset)
    if tensor.type in PLAIN:
        return data.view(PLAIN[tensor.type]).reshape(tensor.shape).astype(np.float32, copy=False)
    rows = prod(tensor.shape[:-1])
    data = data.reshape(rows, -1)
    decoded = np.empty((rows, tensor.shape[-1]), dtype=np.float32)
    for start in range(0, rows, ROWS_AT_ONCE):
        decoded[start : start + ROWS_AT_ONCE] = dequantize(data[start : start + ROWS_AT_ONCE], tensor.type)
    return decoded.reshape(tensor.shape)
