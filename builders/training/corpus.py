"""Texts on disk, in shards: each is written whole or not at all, so a run that was killed goes on with the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Text:
    """One text and the parts of it that a head is to learn."""

    kind: str
    tokens: NDArray[np.int32]
    """[n]"""
    learned: NDArray[np.bool_]
    """[n] true: the target's own words."""


def shard_file(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.safetensors"


def save_shard(file: Path, arrays: Arrays, metadata: dict[str, str] | None = None) -> None:
    """Write a shard under another name, then rename it: a shard that is there is whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, partial, metadata)
    partial.replace(file)


def whole(file: Path) -> bool:
    """Whether a shard is there and not cut off (by a disk that was full, say)."""
    try:
        with safe_open(file, "numpy"):
            return True
    except (OSError, SafetensorError):
        return False


def save_texts(file: Path, texts: Iterable[Text]) -> None:
    """Write texts as one shard."""
    kept = list(texts)
    kinds = sorted({text.kind for text in kept})
    arrays: Arrays = {
        "tokens": np.concatenate([text.tokens for text in kept]),
        "learned": np.concatenate([text.learned for text in kept]),
        "ends": np.cumsum([len(text.tokens) for text in kept]),
        "kinds": np.array([kinds.index(text.kind) for text in kept], np.int32),
    }
    save_shard(file, arrays, {"kinds": "\n".join(kinds)})


def load_texts(file: Path) -> Iterator[Text]:
    """The texts of a shard, in order."""
    with safe_open(file, "numpy") as shard:
        kinds = shard.metadata()["kinds"].split("\n")
        tokens, learned = shard.get_tensor("tokens"), shard.get_tensor("learned")
        start = 0
        for end, kind in zip(shard.get_tensor("ends").tolist(), shard.get_tensor("kinds").tolist(), strict=True):
            yield Text(kinds[kind], tokens[start:end], learned[start:end])
            start = end
