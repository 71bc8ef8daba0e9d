"""How much of the waiting prompts is read between two rounds, so that a long one does not stall the streams that run."""

from __future__ import annotations

import sys

STRETCH = 1.7
"""Reading may take so many rounds' time: the gap between two tokens of a stream stays below three of the usual ones."""
SMALLEST, LARGEST = 4, 512
"""Tokens while somebody decodes, and while nobody does: then between two pieces requests are heard and may be cancelled."""
WEIGHT = 0.2
"""Of the newest measurement in the running means."""


class Pace:
    """Reading takes at most ``stretch`` times as long as the rounds do. Both are measured as they come; None: all is read at once.

    Reading n tokens is taken to cost a + b·n seconds: a pass over few tokens costs hardly less than one over a few more.
    """

    def __init__(self, stretch: float | None) -> None:
        self._stretch = stretch
        self._round_seconds = 0.0
        self._means = (0.0, 0.0, 0.0, 0.0)
        """Of n, seconds, n² and n · seconds."""

    def tokens(self, *, decoding: bool) -> int:
        """Prompt tokens to read now."""
        if self._stretch is None:
            return sys.maxsize
        if not decoding:
            return LARGEST
        fixed, each = self._line()
        return SMALLEST if each == 0 else max(SMALLEST, min(LARGEST, int((self._stretch * self._round_seconds - fixed) / each)))

    def round_took(self, seconds: float) -> None:
        """A round without its reading."""
        self._round_seconds = seconds if self._round_seconds == 0 else _moved(self._round_seconds, seconds)

    def reading_took(self, tokens: int, seconds: float) -> None:
        """A piece of ``tokens`` prompt tokens, the draft's reading included."""
        new = (tokens, seconds, tokens * tokens, tokens * seconds)
        self._means = tuple(map(_moved, self._means, new)) if any(self._means) else new  # type: ignore[assignment]  # four stay four

    def _line(self) -> tuple[float, float]:
        """a and b, by least squares; a = 0 where all pieces were alike."""
        n, seconds, squares, products = self._means
        spread = squares - n * n
        each = (products - n * seconds) / spread if spread > 1e-3 * squares else 0.0
        if not 0 < each <= seconds / n if n else True:
            each = seconds / n if n else 0.0
        return seconds - each * n, each


def _moved(mean: float, newest: float) -> float:
    return mean + WEIGHT * (newest - mean)
