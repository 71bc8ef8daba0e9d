"""What the target's passes cost: as they were measured when the engine was built, set right by what they take in the run.

The machine that builds may have been busy, the one that serves may be another. A pass of S tokens costs what was measured times a factor,
the mean of what passes of about as many tokens took so far:

    factor(S) = Σ κ(S, S′) · ratios(S′) / Σ κ(S, S′) · count(S′),    κ(S, S′) = exp(−|ln S/S′| / NEAR)

over passes of the same batch, chains and trees apart. They begin with the factors of all as so many observations, and those with the mean
of all widths seen, each of which weighs about the same however often it came: what was never seen must not seem cheap on a machine that
is slower throughout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .step_times import StepTimes

NEAR = 0.25
"""Passes of twice as many tokens count a sixteenth."""
QUICKEST, SLOWEST = 0.5, 2.0
"""Times what was measured: no pass is taken to have been quicker or slower."""

DECAY, FADING = 0.95, 0.995
"""Of what was seen at passes of a width, when another of it comes, and when one of another width does."""
PRIOR_WEIGHT, UNSEEN = 2.0, 0.25
"""How many passes what others tell stands for, and how many widths the factor 1."""

Kind = tuple[int, bool]
"""Batch, and whether of trees."""
Factors = NDArray[np.float64]
"""[S] of passes of 1 … S tokens."""


class TargetTimes:
    """Passes of up to ``longest`` tokens."""

    def __init__(self, measured: StepTimes, longest: int) -> None:
        steps = np.log(np.arange(1, longest + 1))
        self._measured, self._longest = measured, longest
        self._near = np.exp(-np.abs(steps[:, None] - steps) / NEAR)
        self._seen: dict[Kind, NDArray[np.float64]] = {}
        """Decayed sums [2,S] over passes: 1 and how many times what was measured they took."""
        self._known: dict[tuple[Kind, int], list[float]] = {}
        """Kind and context → seconds of passes of 1 … S tokens, as far as asked for since the last pass."""

    def seconds(self, batch: int, step: int, context: int, *, trees: bool = False) -> float:
        """Of a pass of ``step`` new tokens for each of ``batch`` sequences with ``context`` tokens cached, ``trees`` or chains, and of
        what comes with it: judging, what stays in the cache, the round itself."""
        key = (batch, trees), context
        if key not in self._known:  # a round asks for all of them, many times
            factors = self._factors_of(key[0]).tolist()
            widths = range(1, self._longest + 1)
            self._known[key] = [factors[self._index(width, batch)] * self._measured.seconds(batch, width, context) for width in widths]
        return self._known[key][min(step, self._longest) - 1]

    def observe(self, batch: int, step: int, context: int, seconds: float, *, trees: bool = False) -> None:
        """That took so long."""
        ratio = min(SLOWEST, max(QUICKEST, seconds / self._measured.seconds(batch, step, context)))
        seen, index = self._seen.setdefault((batch, trees), np.zeros((2, self._longest))), self._index(step, batch)
        seen *= FADING
        seen[:, index] = seen[:, index] * (DECAY / FADING) + (1, ratio)
        self._known.clear()

    def _index(self, step: int, batch: int) -> int:
        return min(self._measured.padded(step, batch), self._longest) - 1

    def _factors_of(self, kind: Kind) -> Factors:
        seen = sum(self._seen.values(), np.zeros((2, self._longest)))
        count, ratios = seen / (seen[0] + PRIOR_WEIGHT)
        of_all = self._mean(seen, np.full(self._longest, (ratios.sum() + UNSEEN) / (count.sum() + UNSEEN)))
        return self._mean(self._seen[kind], of_all) if kind in self._seen else of_all

    def _mean(self, seen: NDArray[np.float64], prior: Factors) -> Factors:
        count, ratios = seen @ self._near
        mean: Factors = (ratios + PRIOR_WEIGHT * prior) / (count + PRIOR_WEIGHT)
        return mean
