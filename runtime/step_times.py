"""T(B, S, context): what a pass costs, between the points that were measured when the engine was built."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

from specbuild.bundle import StepCost


class StepTimes:
    """Linear between measured batches, steps and contexts; constant beyond the outermost.

    Args:
        padded: See ``EngineEntry.padded``: a step costs what the one that it is padded to does.
    """

    def __init__(self, costs: Sequence[StepCost], padded: Callable[[int, int], int] = lambda step, batch: step) -> None:
        assert costs, "nothing was measured"
        # A service asks for the same few points every round.
        self.padded = cache(padded)
        self._seconds = {(cost.batch, padded(cost.step, cost.batch), cost.context): cost.seconds for cost in costs}
        self._batches = sorted({cost.batch for cost in costs})
        self._steps = {batch: sorted({step for b, step, _ in self._seconds if b == batch}) for batch in self._batches}
        self._contexts = sorted({cost.context for cost in costs})
        self.seconds = cache(self._interpolated)

    def _interpolated(self, batch: int, step: int, context: int) -> float:
        """Seconds of a pass of ``step`` new tokens for each of ``batch`` sequences with ``context`` tokens cached."""
        return sum(
            wb * ws * wc * self._seconds[b, s, c]
            for b, wb in _between(self._batches, batch)
            for s, ws in _between(self._steps[b], self.padded(step, batch))
            for c, wc in _between(self._contexts, context)
        )


def _between(points: Sequence[int], value: int) -> list[tuple[int, float]]:
    """The measured points around ``value`` and their weights."""
    above = bisect_left(points, value)
    if above == len(points):
        return [(points[-1], 1.0)]
    if above == 0 or points[above] == value:
        return [(points[above], 1.0)]
    low, high = points[above - 1], points[above]
    share = (value - low) / (high - low)
    return [(low, 1 - share), (high, share)]
