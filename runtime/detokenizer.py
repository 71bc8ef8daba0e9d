"""Tokens to text as they come: never half a character, never anything past a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import REPLACEMENT, Tokenizer

LONGEST_INCOMPLETE = 3
"""Replacement characters that the bytes of one unfinished character can decode to (a fourth byte finishes any)."""


class Detokenizer:
    """Text of one sequence's output, token by token.

    A short window is decoded at each token: from the last token whose text was complete (context, because a tokenizer may
    join or strip at its borders) to the newest.
    """

    CONTEXT = 5

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(prompt[-self.CONTEXT :])
        self._shown = len(tokenizer.decode(self._window))

    def push(self, token: int) -> str:
        """The text that ``token`` makes certain; empty while a character is incomplete."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        complete = text.rstrip(REPLACEMENT)
        incomplete = len(text) - len(complete)
        certain = len(text) - min(incomplete, LONGEST_INCOMPLETE)
        new = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        if not incomplete and new:
            self._window = [token]
            self._shown = len(self._tokenizer.decode(self._window))
        return new

    def flush(self) -> str:
        """What is left when no token will follow: an unfinished character shows as U+FFFD."""
        text = self._tokenizer.decode(self._window)
        new, self._shown = text[self._shown :], len(text)
        return new


class StopFilter:
    """Holds back text that may become a stop string, and cuts at the first that does."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text to show, the stop string found or None). After a stop nothing may be pushed."""
        if not self._stops:
            return text, None
        text = self._held + text
        found = min(((text.find(stop), stop) for stop in self._stops if stop in text), default=None)
        if found is not None:
            self._held = ""
            return text[: found[0]], found[1]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """What was held back and became no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next(n for n in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:n]))
