"""Log-probabilities of emitted tokens, as the model has them: log-softmax of the raw logits, before any transform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities at one emitted position, in nats."""

    token: int
    logprob: float
    """Of the emitted token."""
    top: tuple[tuple[int, float], ...]
    """The most likely (token, logprob) pairs, most likely first; equals in order of id."""


def logprobs(row: NDArray[np.float32], token: int, count: int, vocabulary_size: int) -> Logprobs:
    """Of the token emitted from ``row`` [≥ V] and of the ``count`` most likely ones; padding ids are left out of the sum."""
    values = row[:vocabulary_size].astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    top: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    if count:
        threshold = np.partition(values, -count)[-count]
        likely = np.flatnonzero(values >= threshold)
        top = likely[np.argsort(-values[likely], kind="stable")][:count]
    return Logprobs(token, float(values[token]), tuple((int(one), float(values[one])) for one in top))
