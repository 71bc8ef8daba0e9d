"""Weights to integers in blocks, each with the scale that loses least. Pure numpy, row by row of [N, K]."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Bits = Literal[4, 8]

# Rows are worked on in pieces of about this many weights: small enough for a core's cache.
_PIECE = 1 << 16
# How much of the integer range the largest weight of a block takes, as candidates: a little clipping often loses less than coarse steps.
_INT4_STRETCH = (1.0, 0.94, 0.88, 0.82, 1.06, 1.12)


def quantize_rows(
    weights: NDArray[np.float32], bits: Bits, block: int, *, signed_scale: bool
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers q [N,K] and scales s [N,⌈K/block⌉] with w ≈ s·q and the squared error of each block small. The last block may be short.

    For four bits several scales are tried a block, each refitted by least squares to the integers that it gives: s = Σwq / Σq²,
    with error Σw² − (Σwq)² / Σq². A block that lies on such a grid already keeps its values.

    Args:
        signed_scale: Let the weight of largest magnitude take the longer, negative end of the range whatever its sign,
            as in GGUF's Q4_0: the scale then has the opposite sign. TensorRT wants positive scales.
    """
    rows, columns = weights.shape
    count = -(-columns // block)
    codes = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, count), np.float32)
    step = max(1, _PIECE // columns)
    for first in range(0, rows, step):
        piece = np.pad(weights[first : first + step], ((0, 0), (0, count * block - columns)))
        blocks = piece.reshape(-1, block)
        integers, scale = _int8(blocks) if bits == 8 else _int4(blocks, signed_scale)
        codes[first : first + step] = integers.reshape(piece.shape)[:, :columns]
        scales[first : first + step] = scale.reshape(len(piece), count)
    return codes, scales


def _int8(blocks: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """At 255 steps the search gains nothing: the largest magnitude becomes ±127, as in GGUF's Q8_0."""
    scale = np.abs(blocks).max(axis=1) / np.float32(127)
    return np.rint(blocks / _nonzero(scale)[:, None]), scale


def _int4(blocks: NDArray[np.float32], signed_scale: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)[:, 0]
    largest: NDArray[np.float32] = np.abs(extreme)
    ends = [largest / np.float32(7)]
    if signed_scale:
        ends.append(extreme / np.float32(-8))
    best, best_gain = np.zeros_like(blocks), np.full(len(blocks), -1.0, np.float32)
    best_scale = np.zeros(len(blocks), np.float32)
    for end in ends:
        for stretch in _INT4_STRETCH:
            inverse = np.float32(1 / stretch) / _nonzero(end)
            integers = blocks * inverse[:, None]
            np.rint(integers, out=integers)
            np.clip(integers, -8, 7, out=integers)
            along = np.einsum("bk,bk->b", blocks, integers)
            length = np.einsum("bk,bk->b", integers, integers)
            scale = along / np.maximum(length, np.float32(1))
            gain = along * scale
            better = gain > best_gain
            best[better], best_gain[better], best_scale[better] = integers[better], gain[better], scale[better]
    return best, best_scale


def _nonzero(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """``scale``, or 1 where it is so small (an empty block) that dividing by it would overflow."""
    safe: NDArray[np.float32] = np.where(np.abs(scale) > np.float32(1e-30), scale, np.float32(1))
    return safe
