"""What drafting costs: passes as they were measured when the engine was built, set right by what drafting takes among the target's passes.

There it takes more: the weights that a pass of the target has driven out of the caches are read anew, and tokens are chosen. A head of
a quarter of a millisecond a pass drafts n tokens in 0.4 + 0.5 n so.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from .acceptance_record import DECAY, PRIOR_WEIGHT
from .draft import Shape
from .step_times import StepTimes

QUICKEST, SLOWEST = 0.5, 5.0
"""Times what was measured: no pass is taken to be quicker, and a draft that took longer had to catch up, or was disturbed."""


class DraftTimes:
    """Of the passes with which one method drafts.

    Args:
        step: Passes of its engine as they were measured.
        at_once: One pass gives all tokens (Medusa heads), not one each level.
        shared: They are passes of the target's own first layers, which then need not read the draft again (early exit).
    """

    def __init__(self, step: StepTimes, *, at_once: bool = False, shared: bool = False) -> None:
        self.step, self.shared = step, shared
        self._at_once = at_once
        # Decayed sums over rounds that drafted, of n passes and y times what a pass measured: 1, n, y, n², ny. The first ones are made up.
        self._sums = PRIOR_WEIGHT / 2 * np.array([2.0, 3.0, 3.0, 5.0, 5.0])
        self._trees = PRIOR_WEIGHT * np.ones(2)
        """Likewise of rounds with trees: 1, and how many times what its passes were expected to take such a draft did."""

    def seconds(self, batch: int, shape: Shape, context: int) -> float:
        """Seconds of drafting for each of ``batch`` sequences."""
        if not shape.length:
            return 0.0
        if shape.branches:
            taken = float(self._trees[1] / self._trees[0]) * self._tree(batch, shape, context)
        else:
            taken = self.thinking(batch, shape.length, context)
        if self.shared:
            taken -= self.step.seconds(batch, 1 + shape.length, context) - self.step.seconds(batch, 1, context)
        return taken

    def thinking(self, batch: int, tokens: float, context: int) -> float:
        """Seconds of drafting ``tokens`` of a chain, on the average."""
        return self._passing(self._passes(tokens)) * self.step.seconds(batch, 1, context) if tokens else 0.0

    def next(self, batch: int, context: int) -> float:
        """Seconds that one token more of a chain takes."""
        return 0.0 if self._at_once else self._line[1] * self.step.seconds(batch, 1, context)

    def observe(self, batch: int, tokens: int, context: int, seconds: float) -> None:
        """A round's chains, the longest of ``tokens``, took so long."""
        passes = self._passes(tokens)
        times = min(seconds / self.step.seconds(batch, 1, context), SLOWEST * passes)
        self._sums = self._sums * DECAY + [1, passes, times, passes * passes, passes * times]

    def observe_tree(self, batch: int, shape: Shape, context: int, seconds: float) -> None:
        """A round's trees, the largest of ``shape``, took so long."""
        self._trees = self._trees * DECAY + [1, min(seconds / self._tree(batch, shape, context), SLOWEST)]

    def _tree(self, batch: int, shape: Shape, context: int) -> float:
        """What a tree of ``shape`` would take if its levels were like the passes of a chain."""
        passes = self._passes(shape.length)
        return self._passing(passes) * self.step.seconds(batch, ceil(shape.budget / passes), context)

    def _passes(self, tokens: float) -> float:
        return min(tokens, 1) if self._at_once else tokens

    def _passing(self, passes: float) -> float:
        """What so many passes of a draft take, in passes as they were measured."""
        once, each = self._line
        return once + each * passes

    @property
    def _line(self) -> tuple[float, float]:
        """(what a draft takes beside its passes, what each takes), by least squares."""
        count, n, y, nn, ny = self._sums.tolist()
        slope = (count * ny - n * y) / (count * nn - n * n)
        each = max(QUICKEST, min(slope, y / n))  # y / n: nothing beside its passes
        return max(0.0, (y - each * n) / count), each
