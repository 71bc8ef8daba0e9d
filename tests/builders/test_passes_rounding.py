"""Weights to integers: what is on a grid stays, what is not loses little."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from specbuild.builders.passes.rounding import quantize_rows

Array = NDArray[np.float32]


def restored(codes: NDArray[np.int8], scales: Array) -> Array:
    rows = codes.reshape(-1, 32) * scales.reshape(-1, 1)
    return rows.reshape(codes.shape)


def test_gguf_q4_0_blocks_keep_their_values() -> None:
    """d·(q − 8) with q in 0…15, either sign of d, the longer end used as GGUF's quantiser uses it."""
    random = np.random.default_rng(0)
    q = random.integers(0, 16, (40, 3, 32))
    q[..., 5] = 0  # the extreme is −8·d
    d = (random.choice([-1, 1], (40, 3, 1)) * random.uniform(0.001, 0.1, (40, 3, 1))).astype(np.float32)
    weights = (d * (q - 8)).astype(np.float32).reshape(40, 96)
    codes, scales = quantize_rows(weights, 4, 32, signed_scale=True)
    np.testing.assert_allclose(restored(codes, scales), weights, rtol=1e-5, atol=1e-7)
    assert np.array_equal(codes.reshape(40, 3, 32), q - 8)


def test_gguf_q8_0_blocks_keep_their_values() -> None:
    random = np.random.default_rng(0)
    q = random.integers(-127, 128, (40, 3, 32))
    q[..., 7] = 127
    weights = (random.uniform(0.001, 0.1, (40, 3, 1)).astype(np.float32) * q).astype(np.float32).reshape(40, 96)
    codes, scales = quantize_rows(weights, 8, 32, signed_scale=True)
    assert np.array_equal(codes.reshape(40, 3, 32), q)
    np.testing.assert_allclose(restored(codes, scales), weights, rtol=1e-6)


@settings(deadline=None)
@given(arrays(np.float32, (3, 64), elements=st.floats(-8, 8, width=32)), st.booleans())
def test_four_bits_are_never_worse_than_the_largest_magnitude_as_seven(weights: Array, signed_scale: bool) -> None:
    codes, scales = quantize_rows(weights, 4, 32, signed_scale=signed_scale)
    assert codes.min() >= -8
    assert codes.max() <= 7
    assert np.isfinite(scales).all()
    assert signed_scale or (scales >= 0).all()
    blocks = weights.reshape(-1, 32).astype(np.float64)
    plain_scale = np.abs(blocks).max(axis=1, keepdims=True) / 7
    plain = np.rint(blocks / np.where(plain_scale > 0, plain_scale, 1)) * plain_scale
    error = ((restored(codes, scales).reshape(-1, 32) - blocks) ** 2).sum(axis=1)
    slack = 1e-5 * (blocks**2).sum(axis=1) + 1e-58  # float32 sums; weights below 1e-30 count as nothing
    assert (error <= ((plain - blocks) ** 2).sum(axis=1) * (1 + 1e-4) + slack).all()


@settings(deadline=None)
@given(arrays(np.float32, (3, 64), elements=st.floats(-8, 8, width=32)))
def test_eight_bits_are_within_half_a_step(weights: Array) -> None:
    codes, scales = quantize_rows(weights, 8, 32, signed_scale=True)
    half_step = np.repeat(scales, 32, axis=1) / 2
    # A block whose scale would be below 1e-30 is zero: its weights are below 128e-30.
    assert (np.abs(restored(codes, scales) - weights) <= half_step * 1.001 + 1.28e-28).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_an_empty_block_is_zero(bits: int) -> None:
    codes, scales = quantize_rows(np.zeros((2, 32), np.float32), bits, 32, signed_scale=True)  # type: ignore[arg-type]
    assert not codes.any()
    assert not scales.any()


def test_search_loses_less_than_plain_rounding_on_normal_weights() -> None:
    weights = np.random.default_rng(0).standard_normal((200, 320)).astype(np.float32)

    def loss(signed_scale: bool) -> float:
        return float(((restored(*quantize_rows(weights, 4, 32, signed_scale=signed_scale)) - weights) ** 2).mean())

    scale = np.abs(weights.reshape(-1, 32)).max(axis=1, keepdims=True) / 7
    plain = float(((np.rint(weights.reshape(-1, 32) / scale) * scale - weights.reshape(-1, 32)) ** 2).mean())
    assert loss(True) < loss(False) < 0.8 * plain


def test_rows_do_not_depend_on_their_neighbours() -> None:
    weights = np.random.default_rng(0).standard_normal((5000, 64)).astype(np.float32)
    codes, scales = quantize_rows(weights, 4, 32, signed_scale=True)
    alone_codes, alone_scales = quantize_rows(weights[4321:4322], 4, 32, signed_scale=True)
    assert np.array_equal(codes[4321:4322], alone_codes)
    assert np.array_equal(scales[4321:4322], alone_scales)
