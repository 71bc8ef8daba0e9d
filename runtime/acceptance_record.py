"""What became of the drafts of each method, by what they rested on, chains and trees apart: the acceptance to be expected of the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from .draft import Shape
from .ground import Ground

DECAY = 0.98
"""Of counts at each observation: some fifty are remembered."""
FADING = 0.999
"""Of a tree's counts at each round without it: what it failed at may pay later."""
PRIOR, PRIOR_WEIGHT = 0.6, 4.0
"""Acceptance that a method is credited with before anything is known, and how many observations that stands for."""


class Record:
    """Decayed counts of drafts that are alike."""

    def __init__(self, positions: int, chain: Record | None = None) -> None:
        """``chain``: of the same drafts as chains, where this is of trees."""
        self.reached = [0.0] * positions
        self.accepted = [0.0] * positions
        self.asked = 0.0
        self.drafted = 0.0
        self._chain = chain

    def observe(self, drafted: int, accepted: int, failed: bool) -> None:
        """A round in which tokens were asked for."""
        self.asked = self.asked * DECAY + 1
        self.drafted = self.drafted * DECAY + (drafted > 0)
        for position in range(min(accepted + failed, len(self.reached))):
            self.reached[position] = self.reached[position] * DECAY + 1
            self.accepted[position] = self.accepted[position] * DECAY + (position < accepted)

    def fade(self) -> None:
        """A round went by without it."""
        self.asked, self.drafted = self.asked * FADING, self.drafted * FADING
        self.reached = [count * FADING for count in self.reached]
        self.accepted = [count * FADING for count in self.accepted]

    @property
    def coverage(self) -> float:
        """Share of rounds in which there was a draft."""
        prior = 1.0 if self._chain is None else self._chain.coverage
        return (self.drafted + PRIOR_WEIGHT * prior) / (self.asked + PRIOR_WEIGHT)

    @property
    def rates(self) -> list[float]:
        """Acceptance by depth. One never reached is taken to be like the one before it; in a tree, to be spared half of what its chain
        misses: enough to be tried where that would pay."""
        credits = None if self._chain is None else [(1 + rate) / 2 for rate in self._chain.rates]
        rates = [PRIOR]
        for position, (accepted, reached) in enumerate(zip(self.accepted, self.reached, strict=True)):
            prior = rates[-1] if credits is None else credits[position]
            rates.append((accepted + PRIOR_WEIGHT * prior) / (reached + PRIOR_WEIGHT))
        return rates[1:]


class Records:
    """One for each method, ground and budget that was asked for."""

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._records: dict[tuple[str, Ground, int], Record] = {}

    def of(self, method: str, ground: Ground, shape: Shape) -> Record:
        """Of chains of any length, or of trees of one budget and any depth."""
        key = method, ground, shape.budget if shape.branches else 0
        if key not in self._records:
            chain = self.of(method, ground, Shape.chain(0)) if shape.branches else None
            self._records[key] = Record(self._positions, chain)
        return self._records[key]

    def pass_by(self, shape: Shape) -> None:
        """A round has drafts of ``shape``: other trees fade. Chains do not: every tree has one to tell of."""
        for (*_, budget), record in self._records.items():
            if budget not in (0, shape.budget):
                record.fade()


def expected(rates: Sequence[float]) -> list[float]:
    """Σ_{i≤k} Π_{j≤i} aⱼ for k = 0 … len(rates): accepted tokens of a draft that is k deep."""
    return [0.0, *accumulate(accumulate(rates, mul))]
