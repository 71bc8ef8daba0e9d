"""A law: the distribution of the next token after all transforms, over the tokens that survive them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .noise import Stream, gumbel, gumbel_ceiling

# Below this many tokens the noise itself costs less than its bound.
_FEW = 512


@dataclass(frozen=True, eq=False)
class Law:
    """A distribution over ``tokens``; every other token has probability 0.

    ``scores`` are log-probabilities up to a constant: choosing a token does not need the constant, so it is worked out
    only for those who read ``log_p`` or ``p``.
    """

    tokens: NDArray[np.int64]
    """[n] ascending."""
    scores: NDArray[np.float64]
    """[n] finite."""

    @classmethod
    def point(cls, token: int) -> Law:
        """All mass on one token: greedy decoding, and the law of a deterministic draft."""
        return cls(np.array([token], dtype=np.int64), np.zeros(1))

    @classmethod
    def of(cls, probabilities: Sequence[float] | NDArray[np.float64]) -> Law:
        """The law of dense probabilities or weights [V]."""
        weights = np.asarray(probabilities, dtype=np.float64)
        tokens = np.flatnonzero(weights > 0)
        return cls(tokens, np.log(weights[tokens]))

    @classmethod
    def weighted(cls, tokens: NDArray[np.int64], weights: NDArray[Any]) -> Law:
        """The law in proportion to ``weights`` [n] ≥ 0 of ``tokens`` [n]; exact for exact weights."""
        possible = weights > 0
        law = cls(tokens[possible], np.log(weights[possible].astype(np.float64)))
        law.__dict__["p"] = weights[possible] / weights.sum()
        return law

    @cached_property
    def log_p(self) -> NDArray[np.float64]:
        """[n] normalised."""
        top = self.scores.max()
        shifted: NDArray[np.float64] = self.scores - top
        shifted -= np.log(np.exp(shifted).sum())
        return shifted

    @cached_property
    def p(self) -> NDArray[Any]:
        """[n] probabilities of ``tokens``."""
        return np.exp(self.log_p)

    def at(self, tokens: NDArray[np.int64]) -> NDArray[Any]:
        """Probabilities of any token ids, 0 for those that do not survive."""
        index = np.minimum(np.searchsorted(self.tokens, tokens), self.tokens.size - 1)
        return np.where(self.tokens[index] == tokens, self.p[index], 0)

    def probability(self, token: int) -> Any:
        """Probability of one token."""
        return self.at(np.array([token]))[0]

    def without(self, tokens: Collection[int]) -> Law:
        """The law of those that are none of ``tokens``. From the scores: what is left of a peaked law is a law too."""
        if not tokens:
            return self
        kept = np.isin(self.tokens, list(tokens), invert=True)
        assert kept.any(), "a law without any of its tokens"
        return Law(self.tokens[kept], self.scores[kept])

    def likeliest(self, count: int) -> tuple[int, ...]:
        """The ``count`` likeliest tokens (or as many as there are), the likeliest first; among equals the lowest id."""
        return tuple(self.tokens[_largest(self.scores, count)].tolist())


def draw(law: Law, seed: int, position: int, stream: Stream, lane: int = 0) -> int:
    """The token argmax(log p + g): a draw of the law with the noise of that place; ties go to the lowest id."""
    return draw_several(law, 1, seed, position, stream, lane)[0]


def draw_several(law: Law, count: int, seed: int, position: int, stream: Stream, lane: int = 0) -> tuple[int, ...]:
    """The ``count`` tokens (or as many as there are) of the largest log p + g, the largest first: draws without replacement (Gumbel
    top-k, 1903.06059), of which the first is that of ``draw``.

    A law of one token needs no noise, so greedy decoding pays for none. Of a large law only tokens whose bound reaches
    the score of the last true candidate get their noise.
    """
    tokens, scores = law.tokens, law.scores
    if tokens.size == 1:
        return (int(tokens[0]),)
    if tokens.size > _FEW:
        bound = scores + gumbel_ceiling(seed, position, tokens, stream, lane)
        likely = _largest(bound, count)
        least = (scores[likely] + gumbel(seed, position, tokens[likely], stream, lane)).min()
        within_reach = np.flatnonzero(bound >= least)
        tokens, scores = tokens[within_reach], scores[within_reach]
    return tuple(tokens[_largest(scores + gumbel(seed, position, tokens, stream, lane), count)].tolist())


def _largest(values: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Indices of the ``count`` largest values, the largest first; among equals the lowest index."""
    if count == 1:
        return np.array([values.argmax()])
    if count < values.size:
        reaching = np.flatnonzero(values >= np.partition(values, values.size - count)[-count])
    else:
        reaching = np.arange(values.size)
    largest: NDArray[np.int64] = reaching[np.argsort(-values[reaching], kind="stable")[:count]]
    return largest
