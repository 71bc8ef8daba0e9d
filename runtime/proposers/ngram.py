"""Prompt lookup: the longest recent suffix found earlier in prompt and output; its continuation is the draft.

A wrong draft token costs time, so a match vouches for as many draft tokens as it is long (two at least: the second is nearly free),
and for none where its last two continuations differ. On text of six tasks the first draft token was right in 24, 44, 48, 80 of 100
cases after a match of 1, 2, 3, 9 tokens; after one token whose last two continuations agreed in about 60, else in 15.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..draft import Draft
from ..request import Running
from .base import Ask, Proposer


class NgramIndex:
    """Where each n-gram of a growing token list last occurred before its end. Each token is indexed once."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._next: dict[tuple[int, ...], int] = {}
        self._torn: set[tuple[int, ...]] = set()
        """Those whose last two continuations differ."""
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams of ``tokens`` that end before its last token: the suffix itself must not match itself."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._put(tuple(tokens[end - size : end]), end, tokens)
        self._indexed = max(self._indexed, len(tokens) - 1)

    def _put(self, ngram: tuple[int, ...], end: int, tokens: Sequence[int]) -> None:
        before = self._next.get(ngram)
        if before is not None and tokens[before] != tokens[end]:
            self._torn.add(ngram)
        else:
            self._torn.discard(ngram)
        self._next[ngram] = end

    def continuation(self, tokens: Sequence[int], longest: int) -> tuple[int, int]:
        """(index of the token that followed the last earlier occurrence of the longest suffix that has one, tokens that it vouches for).

        The match is followed back past the n-gram that found it, as far as ``longest`` tokens ask for. It vouches for none where it
        is no longer than the n-gram and the last two continuations of that differ.
        """
        for size in self._sizes:
            ngram = tuple(tokens[-size:])
            start = self._next.get(ngram) if size < len(tokens) else None
            if start is not None:
                matched = size
                while matched < min(max(longest, size + 1), start) and tokens[start - matched - 1] == tokens[-matched - 1]:
                    matched += 1
                return start, 0 if ngram in self._torn and matched == size else max(2, matched)
        return 0, 0


class NgramProposer(Proposer):
    """Drafts by copying. Knows nothing of the engine; a sequence costs one dictionary."""

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
        start, vouched = index.continuation(tokens, length)
        copied: list[int] = []
        for source in range(start, start + min(vouched, length)):
            # Past the end the copy goes on in itself: a loop in the text is drafted round and round.
            copied.append(tokens[source] if source < len(tokens) else copied[source - len(tokens)])
        return Draft.chain(copied)

    def retire(self, sequence: Running) -> None:
        self._indexes.pop(sequence.id, None)
