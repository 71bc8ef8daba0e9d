"""What a head is trained on, in shards beside the texts: the target's hidden states and its law at every position."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .corpus import Arrays, Text, load_texts, save_shard
from .reader import Reader
from .vocabulary import DraftVocabulary

LAW_TOKENS = 32
"""Most likely tokens of each law that are kept. Of what the target writes they have all the mass but a thousandth or so."""


@dataclass(frozen=True)
class Sample:
    """One text as a head sees it; arrays are views of a memory-mapped shard."""

    tokens: NDArray[np.int32]
    """[n]"""
    learned: NDArray[np.bool_]
    """[n]"""
    hidden: NDArray[np.float16]
    """[n, H·taps]"""
    law_ids: NDArray[np.int32]
    """[n, LAW_TOKENS] draft ids of the likeliest next tokens."""
    law: NDArray[np.float16]
    """[n, LAW_TOKENS] their probabilities, which sum to 1."""


def write_features(texts: Path, file: Path, reader: Reader, head: NDArray[np.float32], vocabulary: DraftVocabulary) -> None:
    """The shard of features of a shard of texts.

    Args:
        head: [V_draft, H] rows of the target's LM head; the reader's last tap is what they are applied to.
    """
    samples = [_sample(text, reader, head) for text in load_texts(texts)]
    arrays: Arrays = {
        name: np.concatenate([getattr(sample, name) for sample in samples]) for name in ("tokens", "learned", "hidden", "law_ids", "law")
    }
    arrays["ends"] = np.cumsum([len(sample.tokens) for sample in samples])
    save_shard(file, arrays, {"vocabulary": vocabulary.digest})


def load_samples(file: Path) -> Iterator[Sample]:
    """The samples of a shard; their arrays stay on disk until they are looked at."""
    arrays = _mapped(file)
    start = 0
    for end in arrays["ends"].tolist():
        yield Sample(**{name: array[start:end] for name, array in arrays.items() if name != "ends"})  # type: ignore[arg-type]
        start = end


def _sample(text: Text, reader: Reader, head: NDArray[np.float32]) -> Sample:
    hidden = reader.read(text.tokens)
    ids, law = top_law(hidden[:, -head.shape[1] :], head)
    return Sample(text.tokens, text.learned, hidden.astype(np.float16), ids, law)


def top_law(last: NDArray[np.float32], head: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The likeliest LAW_TOKENS rows of ``head`` after each hidden state [n,H], and their probabilities among themselves."""
    logits = last @ head.T
    count = min(LAW_TOKENS, len(head))
    ids = np.argpartition(logits, -count, axis=1)[:, -count:]
    kept = np.take_along_axis(logits, ids, axis=1)
    law = np.exp(kept - kept.max(axis=1, keepdims=True))
    law /= law.sum(axis=1, keepdims=True)
    return ids.astype(np.int32), law.astype(np.float16)


def _mapped(file: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays of a safetensors file as memory maps. The file: length of the header (8 bytes), header (JSON), data."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    return {
        name: np.memmap(file, _DTYPES[entry["dtype"]], "r", 8 + length + entry["data_offsets"][0], tuple(entry["shape"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }


_DTYPES = {"BOOL": np.bool_, "F16": np.float16, "I32": np.int32, "I64": np.int64}
