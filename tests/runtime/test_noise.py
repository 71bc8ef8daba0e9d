"""The noise: uniform, independent across places, the same bits in every array library, and argmax(log p + g) is a draw of p."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from specbuild.runtime.law import Law, draw
from specbuild.runtime.noise import Stream, gumbel, gumbel_ceiling, uniform

TOKENS = np.arange(49_152)


def uniforms(seed: int, position: int, stream: Stream = Stream.SHARED, lane: int = 0) -> NDArray[np.float64]:
    """The u behind the noise: exp(−exp(−g))."""
    return np.asarray(np.exp(-np.exp(-gumbel(seed, position, TOKENS, stream, lane))))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 0), (0, 1), (2**64 - 1, 2**31), (123456789, 777)])
def test_noise_is_uniform_under_its_own_law(seed: int, position: int) -> None:
    assert stats.kstest(uniforms(seed, position), "uniform").pvalue > 1e-3


def test_noise_is_uniform_over_positions_and_seeds_of_one_token() -> None:
    token = np.array([17])
    by_position = [float(gumbel(5, position, token)[0]) for position in range(4000)]
    by_seed = [float(gumbel(seed, 5, token)[0]) for seed in range(4000)]
    for sample in (by_position, by_seed):
        assert stats.kstest(sample, "gumbel_r").pvalue > 1e-3


@pytest.mark.parametrize(
    "other",
    [
        lambda: uniforms(3, 101),
        lambda: uniforms(4, 100),
        lambda: np.roll(uniforms(3, 100), 1),
        lambda: np.roll(uniforms(3, 100), 2),
        lambda: np.roll(uniforms(3, 101), -1),
        lambda: uniforms(3, 100, Stream.DRAFT),
        lambda: uniforms(3, 100, Stream.SHARED, lane=1),
        lambda: uniforms(100, 3),
    ],
    ids=["position", "seed", "token", "token+2", "diagonal", "stream", "lane", "swapped"],
)
def test_neighbours_are_independent(other: Callable[[], NDArray[np.float64]]) -> None:
    """χ² of the joint 16 × 16 histogram, and no value in common but by chance."""
    here, there = uniforms(3, 100), other()
    counts, *_ = np.histogram2d(here, there, bins=16, range=[[0, 1], [0, 1]])
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3
    assert np.count_nonzero(here == there) <= 1


def test_coins_are_uniform_and_independent_of_their_neighbours() -> None:
    coins = np.array([[uniform(9, position, Stream.COIN, lane) for lane in range(4)] for position in range(4000)])
    assert stats.kstest(coins.ravel(), "uniform").pvalue > 1e-3
    assert ((coins > 0) & (coins < 1)).all()
    correlation = np.corrcoef(coins.T) - np.eye(4)
    assert np.abs(correlation).max() < 4 / math.sqrt(4000)
    assert abs(np.corrcoef(coins[:-1, 0], coins[1:, 0])[0, 1]) < 4 / math.sqrt(4000)


def test_numpy_and_torch_have_the_same_bits() -> None:
    for seed, position, stream in [(0, 0, Stream.SHARED), (2**64 - 1, 12345, Stream.DRAFT), (31337, 9, Stream.RESIDUAL)]:
        ours = gumbel(seed, position, TOKENS, stream, lane=2)
        theirs = gumbel(seed, position, torch.arange(TOKENS.size), stream, lane=2)
        assert theirs.dtype == torch.float64
        assert ours.tobytes() == theirs.numpy().tobytes()


def test_noise_of_a_subset_is_the_noise_of_the_whole() -> None:
    subset = np.array([40_000, 3, 3, 12_345])
    assert (gumbel(1, 2, subset) == gumbel(1, 2, TOKENS)[subset]).all()


def test_values_stay_as_they_are() -> None:
    """A seed's text must not change between releases."""
    assert gumbel(42, 7, np.array([0, 1, 49_151])).tolist() == [0.20851971693974622, 0.31779478235915465, -1.6152010136544699]
    assert uniform(42, 7, Stream.COIN) == 0.23878695393288318


def test_noise_agrees_with_the_logarithm_and_stays_below_its_ceiling() -> None:
    tokens = np.arange(1_000_000)
    noise = gumbel(8, 8, tokens)
    u = np.exp(-np.exp(-noise))
    inner = (u > 1e-3) & (u < 1 - 1e-3)
    assert np.abs(-np.log(-np.log(u[inner])) - noise[inner]).max() < 1e-9
    excess = gumbel_ceiling(8, 8, tokens) - noise
    assert excess.min() >= 0
    assert excess[noise > 4].max() < 0.02, "tight where it decides"
    assert noise.min() > -math.log(33 * math.log(2)) - 1e-9
    assert noise.max() < 33 * math.log(2) + 1e-9


@pytest.mark.parametrize("weights", [[0.5, 0.25, 0.125, 0.125], [0.9, 0.05, 0.03, 0.02], [1.0, 1.0, 1.0]])
def test_argmax_with_noise_draws_the_law(weights: list[float]) -> None:
    law = Law.of(weights)
    drawn = [draw(law, 11, position, Stream.SHARED) for position in range(6000)]
    counts = np.bincount(drawn, minlength=len(weights))
    assert stats.chisquare(counts, law.p * len(drawn)).pvalue > 1e-3


def test_a_large_law_is_drawn_exactly_as_without_the_ceiling() -> None:
    """Flat, peaked and in between: cutting tokens out of reach changes nothing."""
    generator = np.random.default_rng(0)
    for position, spread in enumerate([0.0, 0.5, 2.0, 5.0, 20.0] * 4):
        law = Law(TOKENS, generator.standard_normal(TOKENS.size) * spread)
        whole = int(np.argmax(law.scores + gumbel(6, position, TOKENS)))
        assert draw(law, 6, position, Stream.SHARED) == whole


def test_a_large_law_is_drawn_in_proportion() -> None:
    """1,000 tokens in 4 groups whose masses are 1, 2, 3 and 4 tenths."""
    weights = np.repeat([1.0, 2.0, 3.0, 4.0], 250)
    drawn = [draw(Law.of(weights), 2, position, Stream.SHARED) // 250 for position in range(4000)]
    assert stats.chisquare(np.bincount(drawn, minlength=4), np.array([400, 800, 1200, 1600])).pvalue > 1e-3
