"""How much of a prompt is read between two rounds, so that a long one does not stall the streams that run."""

from __future__ import annotations

SMALLEST = 8
"""Tokens: below, a pass costs nearly what one token costs."""
LARGEST = 512
"""Tokens while nobody decodes: between two pieces requests are heard and may be cancelled."""
WEIGHT = 0.2
"""Of the newest measurement in the running means."""


class Pace:
    """Reading takes at most ``stretch`` times as long as the rounds do: the gap between two tokens of a running stream grows
    to 1 + ``stretch`` times the usual one. Both times are measured as they come; None: prompts are read whole."""

    def __init__(self, stretch: float | None) -> None:
        self._stretch = stretch
        self._round_seconds = 0.0
        self._token_seconds = 0.0

    def piece(self, *, decoding: bool) -> int | None:
        """Prompt tokens to read now; None: no limit, because nobody minds."""
        if self._stretch is None:
            return None
        if not decoding:
            return LARGEST
        if self._token_seconds == 0:
            return SMALLEST
        return max(SMALLEST, min(LARGEST, int(self._stretch * self._round_seconds / self._token_seconds)))

    def round_took(self, seconds: float) -> None:
        """A round without its reading."""
        self._round_seconds = _mean(self._round_seconds, seconds)

    def reading_took(self, tokens: int, seconds: float) -> None:
        """A piece of ``tokens`` prompt tokens, the draft's reading included."""
        self._token_seconds = _mean(self._token_seconds, seconds / tokens)


def _mean(before: float, newest: float) -> float:
    return newest if before == 0 else before + WEIGHT * (newest - before)
