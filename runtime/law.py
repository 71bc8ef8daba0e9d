"""A law: the distribution of the next token after all transforms, over the tokens that survive them."""

from __future__ import annotations

from collections.abc import Sequence
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


def draw(law: Law, seed: int, position: int, stream: Stream, lane: int = 0) -> int:
    """The token argmax(log p + g): a draw of the law with the noise of that place; ties go to the lowest id.

    A law of one token needs no noise, so greedy decoding pays for none. Of a large law only tokens whose bound reaches
    the score of a true candidate get their noise.
    """
    tokens, scores = law.tokens, law.scores
    if tokens.size == 1:
        return int(tokens[0])
    if tokens.size > _FEW:
        bound = scores + gumbel_ceiling(seed, position, tokens, stream, lane)
        likely = bound.argmax(keepdims=True)
        best = scores[likely] + gumbel(seed, position, tokens[likely], stream, lane)
        within_reach = np.flatnonzero(bound >= best)
        tokens, scores = tokens[within_reach], scores[within_reach]
    return int(tokens[np.argmax(scores + gumbel(seed, position, tokens, stream, lane))])
