"""Samples in batches: texts of similar length together, padded; the order is drawn anew each epoch from the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .features import Sample

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
    """The batch of ``samples``, copied from where they are."""
    longest = max(len(sample.tokens) for sample in samples)

    def padded(name: str, dtype: torch.dtype) -> Tensor:
        first = getattr(samples[0], name)
        out = torch.zeros(len(samples), longest, *first.shape[1:], dtype=dtype)
        for row, sample in enumerate(samples):
            array = getattr(sample, name)
            out[row, : len(array)] = torch.from_numpy(np.array(array)).to(dtype)
        return out

    return Batch(
        padded("tokens", torch.int64),
        padded("hidden", torch.float32),
        padded("learned", torch.bool),
        padded("law_ids", torch.int64),
        padded("law", torch.float32),
    )


def epoch(samples: Sequence[Sample], *, size: int, seed: Sequence[int]) -> Iterator[Batch]:
    """Every sample once, about ``size`` learned tokens a batch."""
    for members in plan([len(sample.tokens) for sample in samples], [int(sample.learned.sum()) for sample in samples], size, seed):
        yield assemble([samples[index] for index in members])


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
