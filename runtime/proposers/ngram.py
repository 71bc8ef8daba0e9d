"""Prompt lookup: the longest recent suffix found earlier in prompt and output; its continuation is the draft.

A match vouches for as many draft tokens as it is long. On text of six tasks the first token after a match of 1, 2, 3, 9
tokens was right in 24, 44, 48, 80 of 100 cases, and where a wrong draft token costs time that rule beat every fixed length.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..draft import Draft
from ..request import Running
from .base import Ask


class NgramIndex:
    """Where each n-gram of a growing token list last occurred before its end. Each token is indexed once."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._next: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams of ``tokens`` that end before its last token: the suffix itself must not match itself."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._next[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def continuation(self, tokens: Sequence[int], longest: int) -> tuple[int, int] | None:
        """(index of the token that followed the last earlier occurrence of the longest suffix that has one, tokens that match before it).

        The match is followed back past the n-gram that found it, to at most ``longest`` tokens.
        """
        for size in self._sizes:
            start = self._next.get(tuple(tokens[-size:])) if size < len(tokens) else None
            if start is not None:
                while size < min(longest, start) and tokens[start - size - 1] == tokens[-size - 1]:
                    size += 1
                return start, size
        return None


class NgramProposer:
    """Drafts by copying. Knows nothing of the engine; a sequence costs one dictionary."""

    engine_seconds = 0.0

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        self._indexes: dict[Hashable, NgramIndex] = {}

    def admit(self, sequence: Running) -> None:
        self._indexes[sequence.id] = NgramIndex(self._shortest, self._longest)

    def read(self, sequence: Running, length: int) -> None:
        self._indexes[sequence.id].extend(sequence.tokens[: length + 1])

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._draft(ask.sequence, ask.draft_len) for ask in asks]

    def _draft(self, sequence: Running, length: int) -> Draft:
        tokens, index = sequence.tokens, self._indexes[sequence.id]
        index.extend(tokens)
        found = index.continuation(tokens, length) if length else None
        if found is None:
            return Draft.EMPTY
        start, matched = found
        copied: list[int] = []
        for source in range(start, start + min(matched, length)):
            # Past the end the copy goes on in itself: a loop in the text is drafted round and round.
            copied.append(tokens[source] if source < len(tokens) else copied[source - len(tokens)])
        return Draft.chain(copied)

    def retire(self, sequence: Running) -> None:
        self._indexes.pop(sequence.id, None)
