"""The tokens that a law depends on: prompt, output and, while a draft is judged, its prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray


class Context:
    """Tokens of one sequence and how often each occurs in its output. Pushing and popping a token cost O(1)."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens = list(prompt)
        """Prompt and output."""
        self._prompt_length = len(self.tokens)
        # One slot a distinct token, in order of appearance: popping frees the last slot or lowers a count.
        ids = list(dict.fromkeys(self.tokens))
        self._prompt_slots = len(ids)
        self._slots = {token: slot for slot, token in enumerate(ids)}
        self._ids = np.array(ids, dtype=np.int64)
        self._counts = np.zeros(len(ids), dtype=np.int64)

    @property
    def position(self) -> int:
        """Place of the next token in the sequence, counted from 0 at the start of the prompt: the key of its noise."""
        return len(self.tokens)

    @property
    def output_length(self) -> int:
        """Tokens after the prompt."""
        return len(self.tokens) - self._prompt_length

    def push(self, token: int) -> None:
        """Append an output token."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == self._ids.size:
            self._ids = np.concatenate([self._ids, np.zeros(slot + 16, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(slot + 16, dtype=np.int64)])
        self._ids[slot] = token
        self._counts[slot] += 1
        self.tokens.append(token)

    def pop(self) -> int:
        """Take back the last output token."""
        assert self.output_length > 0, "the prompt cannot be taken back"
        token = self.tokens.pop()
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] == 0 and slot >= self._prompt_slots:
            del self._slots[token]  # all that came after it is gone: it holds the last slot
        return token

    @contextmanager
    def after(self, tokens: Sequence[int]) -> Iterator[None]:
        """The context with ``tokens`` at its end, for the length of a ``with`` block."""
        for token in tokens:
            self.push(token)
        try:
            yield
        finally:
            for _ in tokens:
                self.pop()

    def seen(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct tokens of prompt and output, and how often each occurs in the output (0: only in the prompt); views, not to be kept."""
        return self._ids[: len(self._slots)], self._counts[: len(self._slots)]
