"""How much of the waiting prompts is read between two rounds, so that a long one does not stall the streams that run."""

from __future__ import annotations

import sys

STRETCH = 1.3
"""Reading may take so many rounds' time: the gap between two tokens of a stream stays below three of the usual ones."""
SMALLEST, LARGEST = 4, 128
"""Tokens. More at a time are not read faster (attention then reads more masked positions), and between two pieces requests are heard."""
WEIGHT = 0.2
"""Of the newest measurement in the running means."""


class Pace:
    """Reading takes at most ``stretch`` times as long as a round of all that run or are to run. Both are measured as they come.

    Reading n tokens is taken to cost a + b·n seconds: a pass over few tokens costs hardly less than one over a few more.
    """

    def __init__(self, stretch: float | None) -> None:
        """``stretch`` None: nobody minds, all is read at once."""
        self._stretch = stretch
        self._rounds: dict[int, float] = {}
        """Sequences → seconds of a round."""
        self._means = (0.0, 0.0, 0.0, 0.0)
        """Of n, seconds, n² and n · seconds."""

    def tokens(self, running: int, to_run: int) -> int:
        """Prompt tokens to read now, where ``running`` sequences decode and ``to_run`` will when the prompts that wait have been read.

        A single guest keeps to the stretch. Where several wait, small pieces, which cost up to three times as much a token, would
        keep them waiting for little: it grows with the square of their number.
        """
        if self._stretch is None:
            return sys.maxsize
        if not running:
            return LARGEST
        fixed, each = self._line()
        if each == 0:
            return SMALLEST
        # The prompt at the head may be a guest among those that run; where more wait, their rounds are soon the usual ones.
        seconds = self._stretch * max(1, to_run - running) ** 2 * self._round(max(running, to_run - 1))
        return max(SMALLEST, min(LARGEST, int((seconds - fixed) / each)))

    def round_took(self, sequences: int, seconds: float) -> None:
        """A round without its reading."""
        self._rounds[sequences] = _moved(self._rounds.get(sequences, seconds), seconds)

    def reading_took(self, tokens: int, seconds: float) -> None:
        """A piece of ``tokens`` prompt tokens, the draft's reading included."""
        new = (tokens, seconds, tokens * tokens, tokens * seconds)
        self._means = tuple(map(_moved, self._means, new)) if any(self._means) else new  # type: ignore[assignment]  # four stay four

    def _round(self, sequences: int) -> float:
        """Seconds of the largest round seen that is not larger than that of ``sequences``."""
        return self._rounds[max((seen for seen in self._rounds if seen <= sequences), default=min(self._rounds))]

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
