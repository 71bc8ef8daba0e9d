"""Randomness without state: every number is a hash of where it is used.

``gumbel(seed, position, token)`` is the noise that makes sampling an argmax (2408.07978): proposer and acceptance compute
the same values without exchanging any, and neither batch neighbours nor draft length can change them. Written once
against the array API with operations that are exact or correctly rounded everywhere (32-bit integers, + − × ÷ of
float64), so NumPy and torch give the same bits; a library's own ``log`` would not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from array_api_compat import array_namespace

Array = Any
"""An array of NumPy, torch or another library of the array API."""

_BLOCK = 16_384


class Stream(IntEnum):
    """Independent sources of randomness at one position."""

    SHARED = 0
    """The Gumbel noise of coupled sampling, the same for proposer and target."""
    DRAFT = 1
    """Draft tokens of the rules that need them independent of the target's coins."""
    COIN = 2
    """Accept or reject."""
    RESIDUAL = 3
    """The tail token after a rejection or a full acceptance."""


def gumbel(seed: int, position: int, tokens: Array, stream: Stream = Stream.SHARED, lane: int = 0) -> Array:
    """Standard Gumbel noise [n] float64 of the token ids ``tokens`` [n] at a position of the sequence.

    g = −log(−log u), u = (h + ½)/2³² of a 32-bit hash h, hence −3.13 < g < 22.88.
    """
    key = _key(seed, position, stream, lane)
    return _by_blocks(tokens, lambda xp, block: _gumbel_of(xp, _hash(xp, key, block)))


def gumbel_ceiling(seed: int, position: int, tokens: Array, stream: Stream = Stream.SHARED, lane: int = 0) -> Array:
    """An upper bound [n] float32 of ``gumbel``, tight where it is large and many times cheaper.

    −log u ≥ 1 − u, so g ≤ −log(1 − u); the slack covers the rounding of float32 and of the library's ``log``.
    """
    key = _key(seed, position, stream, lane)
    return _by_blocks(tokens, lambda xp, block: _ceiling_of(xp, _hash(xp, key, block)))


def uniform(seed: int, position: int, stream: Stream, lane: int = 0) -> float:
    """One number in (0, 1) with 53 random bits."""
    return ((_key(seed, position, stream, lane) >> 12) + 0.5) * 2.0**-52


def _by_blocks(tokens: Array, values: Callable[[Any, Array], Array]) -> Array:
    """``values(xp, block)`` of all tokens, in pieces whose intermediate arrays stay in a core's cache."""
    xp = array_namespace(tokens)
    if tokens.shape[0] <= _BLOCK:
        return values(xp, tokens)
    return xp.concat([values(xp, tokens[start : start + _BLOCK]) for start in range(0, tokens.shape[0], _BLOCK)])


def _gumbel_of(xp: Any, h: Array) -> Array:
    u = xp.astype(h, xp.float64)
    u *= 2.0**-32
    u += 0.5 + 2.0**-33
    return -_log(xp, -_log(xp, u))


def _ceiling_of(xp: Any, h: Array) -> Array:
    h ^= 0x7FFFFFFF  # 1 − u = (h + ½)/2³², read as unsigned
    rest = xp.astype(_shift(h, 1), xp.float32)  # halved to stay positive; rounding down keeps it a bound
    rest += 0.25
    return -xp.log(rest) + (31 * math.log(2) + 1e-5)


def _key(seed: int, position: int, stream: Stream, lane: int) -> int:
    """64 bits from the place: a chain of splitmix64 finalisers."""
    key = seed
    for part in (position, stream, lane):
        key = _splitmix(key ^ _splitmix(part))
    return key


def _splitmix(value: int) -> int:
    mask = 0xFFFFFFFFFFFFFFFF
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def _hash(xp: Any, key: int, tokens: Array) -> Array:
    """32 bits a token as int32 [n]: the three-round finaliser ``triple32`` with the place's key added in two halves.

    int32 because NumPy runs it at full width and torch has little of uint32; products wrap in both.
    """
    h = xp.astype(tokens, xp.int32, copy=True)
    h += _signed(key)
    h ^= _shift(h, 17)
    h *= _signed(0xED5AD4BB)
    h ^= _shift(h, 11)
    h *= _signed(0xAC4C1B51)
    h += _signed(key >> 32)
    h ^= _shift(h, 15)
    h *= _signed(0x31848BAB)
    h ^= _shift(h, 14)
    return h


def _shift(h: Array, bits: int) -> Array:
    """Logical shift right of int32."""
    return (h >> bits) & (0x7FFFFFFF >> (bits - 1))


def _signed(word: int) -> int:
    """The low 32 bits as a signed number."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _log(xp: Any, x: Array) -> Array:
    """Natural logarithm of positive normal float64, within 2 ulp: x = 2ᵉ·m with m in [√½, √2), log m = 2·artanh((m−1)/(m+1))."""
    bits = x.view(xp.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52  # the pattern of √½
    m = (bits - (exponent << 52)).view(xp.float64)
    s = (m - 1) / (m + 1)
    square = s * s
    series = square * (1 / 23) + 1 / 21
    for odd in range(19, 0, -2):
        series *= square
        series += 1 / odd
    series *= s
    series *= 2
    series += xp.astype(exponent, xp.float64) * math.log(2)
    return series
