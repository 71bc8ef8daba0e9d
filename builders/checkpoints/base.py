"""A checkpoint: config, tensors read one at a time, and what its tokenizer needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import canonical_json, file_digest
from specbuild.errors import CheckpointError


class TensorStore(Protocol):
    """Tensors in files, under their Hugging Face names."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold them."""
        ...

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, known without reading it."""
        ...

    def read(self, name: str) -> NDArray[np.float32]:
        """The tensor, contiguous and the caller's own."""
        ...


@dataclass(frozen=True)
class TokenizerFiles:
    """What turns text into tokens and back, as a bundle stores it."""

    tokenizer_json: bytes
    chat_template: str | None
    generation_config: Mapping[str, Any]


@dataclass(frozen=True)
class ModelFiles:
    """Config and tensors. The files have been checked to be whole; no tensor has been read, and none is kept."""

    source: str
    """As the user named it."""
    config: Mapping[str, Any]
    """Hugging Face config keys, also when the source is a GGUF file."""
    tensors: TensorStore

    def names(self) -> tuple[str, ...]:
        """Hugging Face names of all tensors, sorted."""
        return self.tensors.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self.tensors.shape(self._known(name))

    def read(self, name: str) -> NDArray[np.float32]:
        """The tensor as contiguous float32, read and (if need be) dequantised now; the caller owns it.

        Raises:
            CheckpointError: there is no such tensor, or its file can no longer be read.
        """
        return self.tensors.read(self._known(name))

    def digest(self) -> str:
        """sha256 over the content of all that it holds, whatever the files' path, names and order."""
        return hashlib.sha256(canonical_json(self._digests()).encode()).hexdigest()

    def _digests(self) -> dict[str, Any]:
        return {"config": canonical_json(dict(self.config)), "weights": sorted(file_digest(file) for file in self.tensors.files)}

    def _known(self, name: str) -> str:
        if name not in self.tensors.names():
            raise CheckpointError(f"{self.source}: tensor {name} is missing; the checkpoint is incomplete or of another family")
        return name


@dataclass(frozen=True)
class Checkpoint(ModelFiles):
    """An opened checkpoint of a model that reads and writes text."""

    tokenizer: TokenizerFiles

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text; empty when the checkpoint names none."""
        return self._special("eos_token_id")

    @property
    def bos_token_id(self) -> int | None:
        """Token that opens a text, if there is one."""
        return next(iter(self._special("bos_token_id")), None)

    @property
    def pad_token_id(self) -> int | None:
        """Token that fills up a batch, if there is one."""
        return next(iter(self._special("pad_token_id")), None)

    def _digests(self) -> dict[str, Any]:
        return super()._digests() | {
            "tokenizer": hashlib.sha256(self.tokenizer.tokenizer_json).hexdigest(),
            "chat_template": self.tokenizer.chat_template,
            "generation_config": canonical_json(dict(self.tokenizer.generation_config)),
        }

    def _special(self, key: str) -> tuple[int, ...]:
        """The token ids of ``key``; −1 is how some say that there is none.

        Raises:
            CheckpointError: neither a token id nor a list of them.
        """
        value = self.tokenizer.generation_config.get(key)
        value = self.config.get(key) if value is None else value
        ids = value if isinstance(value, list) else [] if value in (None, -1) else [value]
        if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
            raise CheckpointError(f"{self.source}: {key} is {value!r}, but must be a token id; correct generation_config.json")
        return tuple(ids)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in ``file``.

    Raises:
        CheckpointError: the file is missing, or is not a JSON object.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not readable as JSON ({error}); download the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds a JSON {type(value).__name__}, an object was expected; download the file again")
    return value
