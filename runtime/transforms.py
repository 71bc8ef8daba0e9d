"""From a row of logits to the law of the next token, as one request wants it.

The order is fixed: logit bias → bad words and min_tokens (masks) → repetition, then frequency and presence penalties →
temperature → top-k → top-p → min-p. Each works on what the one before it left; top-p's mass is that of the survivors of top-k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.errors import RequestError, VerificationError

from .context import Context
from .draft import Draft
from .law import Law
from .sampling import SamplingParams

_BLOCK = 8192
"""Tokens whose float64 intermediates stay in a core's cache."""

_COLD = 2.0**-40
"""A temperature at which no noise outweighs a difference of two float32."""

LawAt = Callable[[int], Law]
"""The target's law after a draft's node; −1: after the last emitted token."""


@dataclass(frozen=True)
class Transforms:
    """The transforms of one request over a vocabulary. Rows may be longer: padding ids have probability 0."""

    params: SamplingParams
    vocabulary_size: int
    eos_token_ids: tuple[int, ...] = ()

    def laws(self, rows: Sequence[NDArray[np.float32]] | NDArray[np.float32], draft: Draft, context: Context) -> LawAt:
        """The laws of a scored draft, each worked out when it is first asked for.

        ``rows`` [1 + len(draft), ≥ V]: logits after the last emitted token, then after each node. The law of a node counts the tokens on
        its path as output.
        """

        @cache
        def law_at(node: int) -> Law:
            with context.after([draft.tokens[step] for step in draft.path(node)]):
                return self.law(rows[node + 1], context)

        return law_at

    def law(self, row: NDArray[np.float32], context: Context) -> Law:
        """The law of the token after ``context``, from its logits [≥ V]. It depends on this row alone.

        Raises:
            RequestError: every token is forbidden.
            VerificationError: the engine returned NaN.
        """
        scores = self._edited(row[: self.vocabulary_size], context)
        best = _best(scores)
        if self.params.temperature == 0:
            return Law.point(best)
        return self._tempered(scores, float(scores[best]))

    def draft_law(self, row: NDArray[np.float32], context: Context, count: int) -> Law:
        """The law that ``count`` children of a draft's node are chosen from: ``law``, but at temperature 0, where that is one token,
        its limit over the ``count`` likeliest: each has all mass once those before it are left out.

        Raises:
            RequestError, VerificationError: as ``law``.
        """
        if self.params.temperature > 0 or count == 1:
            return self.law(row, context)
        scores = self._edited(row[: self.vocabulary_size], context)
        top = float(scores[_best(scores)])
        count = min(count, scores.size)
        kept = _largest(scores, count, np.partition(scores, scores.size - count)[-count])
        kept = kept[scores[kept] > -np.inf]
        return Law(kept, _log_weights(scores[kept], top, _COLD))

    def _tempered(self, scores: NDArray[np.float32], top: float) -> Law:
        temperature, top_k, top_p, min_p = self.params.temperature, self.params.top_k, self.params.top_p, self.params.min_p
        if top_k and top_k < scores.size:
            kept = _largest(scores, top_k, np.partition(scores, scores.size - top_k)[-top_k])
            kept = kept[scores[kept] > -np.inf]
            if top_p < 1:
                kept = kept[_nucleus(scores[kept], top, temperature, top_p)]
        elif top_p < 1:
            kept = _nucleus(scores, top, temperature, top_p)
        else:
            kept = np.flatnonzero(scores >= _least(top, temperature, min_p))
        tempered = _log_weights(scores[kept], top, temperature)
        if min_p > 0:
            likely = np.exp(tempered) >= min_p
            kept, tempered = kept[likely], tempered[likely]
        return Law(kept, tempered)

    def _edited(self, scores: NDArray[np.float32], context: Context) -> NDArray[np.float32]:
        """Scores after bias, masks and penalties; the row itself when there are none."""
        params = self.params
        forbidden = self._forbidden(context)
        penalised = params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
        if not (params.logit_bias or forbidden or penalised):
            return scores
        scores = scores.copy()
        for token, bias in params.logit_bias.items():
            scores[token] += np.float32(bias)
        scores[forbidden] = -np.inf
        if penalised:
            tokens, counts = context.seen()
            seen = scores[tokens]
            penalty = np.float32(params.repetition_penalty)
            seen = np.where(seen > 0, seen / penalty, seen * penalty)
            seen -= (params.frequency_penalty * counts + params.presence_penalty * (counts > 0)).astype(np.float32)
            scores[tokens] = seen
        return scores

    def _forbidden(self, context: Context) -> list[int]:
        params, tokens = self.params, context.tokens
        forbidden = [last for *start, last in params.bad_words if not start or tokens[-len(start) :] == start]
        if context.output_length < params.min_tokens:
            forbidden += params.stop_token_ids
            if not params.ignore_eos:
                forbidden += self.eos_token_ids
        return forbidden


def _best(scores: NDArray[np.float32]) -> int:
    """The likeliest token; of equals the lowest."""
    best = int(scores.argmax())
    top = float(scores[best])
    if top == -np.inf:
        raise RequestError("bad_words and min_tokens together forbid every token; allow at least one")
    if not np.isfinite(top):
        raise VerificationError(f"the engine's logit of token {best} is {top}; check it with `specbuild engine verify`")
    return best


def _largest(values: NDArray[np.floating[Any]], count: int, threshold: np.floating[Any]) -> NDArray[np.int64]:
    """Indices, ascending, of the ``count`` largest values, of which ``threshold`` is the least; among equals the lowest index wins."""
    kept = np.flatnonzero(values >= threshold)
    surplus = kept.size - count
    if surplus:
        ties = np.flatnonzero(values[kept] == threshold)
        kept = np.delete(kept, ties[-surplus:])
    return kept


def _log_weights(scores: NDArray[np.float32], top: float, temperature: float) -> NDArray[np.float64]:
    """Log-probabilities up to a constant, the largest 0."""
    weights = scores.astype(np.float64)
    weights -= top
    weights /= temperature
    return weights


def _least(top: float, temperature: float, weight: float) -> np.float32:
    """A score just below all whose weight, relative to the largest, reaches ``weight``; the least finite one for 0."""
    lowest = np.finfo(np.float32).min
    if weight == 0 or (score := top + temperature * math.log(weight)) <= lowest:  # a temperature may be any float
        return lowest
    least: np.float32 = np.nextafter(np.float32(score), np.float32(-np.inf))
    return least


def _nucleus(scores: NDArray[np.float32], top: float, temperature: float, top_p: float) -> NDArray[np.int64]:
    """Indices, ascending, of the smallest set of most likely tokens whose mass reaches ``top_p`` of the whole."""
    pieces = (scores[start : start + _BLOCK] for start in range(0, scores.size, _BLOCK))
    mass = sum(float(np.exp(_log_weights(piece, top, temperature)).sum()) for piece in pieces)
    # Tokens below this weight have less than 1 − top_p of the mass together: the nucleus is found without them, and few are sorted.
    candidates = np.flatnonzero(scores >= _least(top, temperature, (1 - top_p) * mass / scores.size))
    weights = np.exp(_log_weights(scores[candidates], top, temperature))
    descending = np.sort(weights)[::-1]
    count = int(np.searchsorted(np.cumsum(descending), top_p * mass)) + 1
    count = min(count, descending.size)  # rounding may leave the sum just short
    return candidates[_largest(weights, count, descending[count - 1])]
