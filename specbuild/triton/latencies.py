"""Latencies as cumulative counts, which is what a Prometheus histogram is."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass
class Histogram:
    """Counts of observations by upper bound. One thread observes, another may read a moment behind."""

    bounds: tuple[float, ...]
    """Seconds, ascending."""
    total: float = 0.0
    counts: list[int] = field(default_factory=list)
    """Observations at most bounds[i] and above bounds[i − 1]; the last entry: above all."""

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self.counts)

    def at_most(self, index: int) -> int:
        """Observations up to bounds[index]."""
        return sum(self.counts[: index + 1])


BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Latencies:
    """What clients feel, as the server sees it."""

    first: Histogram = field(default_factory=lambda: Histogram(BOUNDS))
    """From arrival to the first token."""
    between: Histogram = field(default_factory=lambda: Histogram(BOUNDS))
    """From round to round of one request."""
