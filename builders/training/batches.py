"""Samples in batches: texts of similar length together, padded; the order is drawn anew each epoch from the seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .features import Sample

PART_TOKENS = 3072
"""Of the texts that are computed at a time, padding included: what bounds the memory."""
POOL = 16
"""Batches that are sorted by length together."""


@dataclass(frozen=True)
class Batch:
    """B texts padded to T tokens."""

    tokens: Tensor
    """[B,T] int64"""
    hidden: Tensor
    """[B,T,H·taps] float32, of all taps that are kept."""
    learned: Tensor
    """[B,T] bool; false in the padding."""
    law_ids: Tensor
    """[B,T,K] int64"""
    law: Tensor
    """[B,T,K] float32"""


def assemble(samples: Sequence[Sample]) -> Batch:
    """The batch of ``samples``, read from where they are."""
    longest = max(len(sample.tokens) for sample in samples)

    def padded(arrays: Iterable[NDArray[np.generic]], dtype: torch.dtype) -> Tensor:
        kept = list(arrays)
        out = torch.zeros(len(kept), longest, *kept[0].shape[1:], dtype=dtype)
        for row, array in enumerate(kept):
            out[row, : len(array)] = torch.from_numpy(array).to(dtype)
        return out

    return Batch(
        padded((sample.tokens for sample in samples), torch.int64),
        padded((sample.read("hidden") for sample in samples), torch.float32),
        padded((sample.learned for sample in samples), torch.bool),
        padded((sample.read("law_ids") for sample in samples), torch.int64),
        padded((sample.read("law") for sample in samples), torch.float32),
    )


def parts(samples: Sequence[Sample]) -> Iterator[Batch]:
    """``samples`` in pieces that are not too large to be computed at a time."""
    members: list[Sample] = []
    for sample in sorted(samples, key=lambda sample: len(sample.tokens)):
        if members and (len(members) + 1) * len(sample.tokens) > PART_TOKENS:
            yield assemble(members)
            members = []
        members.append(sample)
    if members:
        yield assemble(members)


def plan(lengths: Sequence[int], learned: Sequence[int], size: int, seed: Sequence[int]) -> list[list[int]]:
    """Which samples make each batch. Neighbours in length are taken together, within pools that chance makes."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(lengths)).tolist()
    batches: list[list[int]] = []
    pool_size = max(1, round(POOL * size * len(lengths) / max(1, sum(learned))))
    for start in range(0, len(order), pool_size):
        pool = sorted(order[start : start + pool_size], key=lambda index: lengths[index])
        members: list[int] = []
        for index in pool:
            members.append(index)
            if sum(learned[member] for member in members) >= size:
                batches.append(members)
                members = []
        if members:
            batches.append(members)
    return [batches[index] for index in random.permutation(len(batches))]
