"""What a head is trained on, in shards beside the texts: the target's hidden states and its law at every position."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from .corpus import Arrays, load_texts, save_shard, whole
from .reader import Reader
from .vocabulary import DraftVocabulary


class _Place(NamedTuple):
    """An array inside a file."""

    file: Path
    dtype: type[np.generic]
    offset: int
    shape: tuple[int, ...]


LAW_TOKENS = 32
"""Most likely tokens of each law that are kept. Of what the target writes they have all the mass but a thousandth or so."""


@dataclass(frozen=True)
class Sample:
    """One text as a head sees it. What is large stays on disk until it is asked for, and is not kept."""

    tokens: NDArray[np.int32]
    """[n]"""
    learned: NDArray[np.bool_]
    """[n]"""
    arrays: Mapping[str, _Place]
    first: int
    """Its first row in them."""

    def read(self, name: str) -> NDArray[np.generic]:
        """A copy of ``hidden`` [n, H·taps] float16, ``law_ids`` [n, LAW_TOKENS] int32 (draft ids) or ``law`` (their probabilities)."""
        place = self.arrays[name]
        width = place.shape[1] * np.dtype(place.dtype).itemsize
        shape = (len(self.tokens), place.shape[1])
        # A map of its own: the pages of one that lives as long as the shard would count as this process's memory.
        return np.array(np.memmap(place.file, place.dtype, "r", place.offset + self.first * width, shape))


def write_features(texts: Path, file: Path, reader: Reader, head: NDArray[np.float32], vocabulary: DraftVocabulary) -> None:
    """The shard of features of a shard of texts.

    Args:
        head: [V_draft, H] rows of the target's LM head; the reader's last tap is what they are applied to.
    """
    kept: dict[str, list[NDArray[np.generic]]] = {}
    for text in load_texts(texts):
        hidden = reader.read(text.tokens)
        ids, law = top_law(hidden[:, -head.shape[1] :], head)
        arrays: Arrays = {"tokens": text.tokens, "learned": text.learned, "hidden": hidden.astype(np.float16), "law_ids": ids, "law": law}
        for name, array in arrays.items():
            kept.setdefault(name, []).append(array)
    ends = np.cumsum([len(tokens) for tokens in kept["tokens"]])
    save_shard(file, {name: np.concatenate(values) for name, values in kept.items()} | {"ends": ends}, {"vocabulary": vocabulary.digest})


def made_for(vocabulary: DraftVocabulary, file: Path) -> bool:
    """Whether a shard is there whole, its laws over ``vocabulary``: with more texts another one may be chosen."""
    if not whole(file):
        return False
    with safe_open(file, "numpy") as shard:
        return bool(shard.metadata()["vocabulary"] == vocabulary.digest)


def load_samples(file: Path) -> Iterator[Sample]:
    """The samples of a shard."""
    arrays = _places(file)
    with safe_open(file, "numpy") as shard:
        tokens, learned, ends = (shard.get_tensor(name) for name in ("tokens", "learned", "ends"))
    start = 0
    for end in ends.tolist():
        yield Sample(tokens[start:end], learned[start:end], arrays, start)
        start = end


def top_law(last: NDArray[np.float32], head: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The likeliest LAW_TOKENS rows of ``head`` after each hidden state [n,H], and their probabilities among themselves."""
    logits = last @ head.T
    count = min(LAW_TOKENS, len(head))
    ids = np.argpartition(logits, -count, axis=1)[:, -count:]
    kept = np.take_along_axis(logits, ids, axis=1)
    law = np.exp(kept - kept.max(axis=1, keepdims=True))
    law /= law.sum(axis=1, keepdims=True)
    return ids.astype(np.int32), law.astype(np.float16)


def _places(file: Path) -> dict[str, _Place]:
    """Where the arrays of a safetensors file lie. The file: length of the header (8 bytes), header (JSON), data."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    return {
        name: _Place(file, _DTYPES[entry["dtype"]], 8 + length + entry["data_offsets"][0], tuple(entry["shape"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }


_DTYPES: dict[str, type[np.generic]] = {"BOOL": np.bool_, "F16": np.float16, "I32": np.int32, "I64": np.int64}
