"""Retrieval from all that this server has written: the text's end is looked up in the text itself and in finished outputs of others.

After SuffixDecoding (2411.04975). Of the occurrences that match at least p tokens, C(N) is the share that goes on with token N, and the
probability of a path is D(N) = D(parent)·C(N). The draft grows by the likeliest token first, and of the drafts of all p, from the text
and from the history, the one with the largest ΣD, the expected number of accepted tokens, is taken. The paper bounds a draft by a multiple
of p, because one occurrence is little evidence; here its count says so: C(N) = n(N) / (n + 3/p'), p' the tokens that match up to N. For
a single occurrence that is 25, 40, 50, 75 % after a match of 1, 2, 3, 9 tokens; prompt lookup was seen to be right in 24, 44, 48, 80.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from ..draft import ROOT, Draft
from ..request import Running
from .base import Ask, Retriever
from .text_index import TextIndex

DOUBT = 3.0
"""Occurrences that went on otherwise and were not seen, for a match of one token; a longer one leaves so much less room for doubt."""
LEAST = 0.15
"""A token less likely than that costs more than it brings."""


class History:
    """Finished outputs, by tenant: the oldest of all leave when there are more than ``limit`` tokens."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._indexes: dict[str | None, TextIndex] = {}
        self._order: deque[str | None] = deque()
        """Whose text came when."""
        self.tokens = 0
        """Kept in all."""

    def of(self, tenant: str | None) -> TextIndex | None:
        """The texts that ``tenant`` may read; None: there are none."""
        return self._indexes.get(tenant)

    def add(self, tenant: str | None, text: Sequence[int]) -> None:
        """Keep ``text``; one that is longer than the limit is not kept."""
        if not text or len(text) >= self._limit:
            return
        index = self._indexes.setdefault(tenant, TextIndex())
        index.extend(text)
        index.close()
        self._order.append(tenant)
        self.tokens += len(text) + 1
        while self.tokens > self._limit:
            oldest = self._order.popleft()
            self.tokens -= self._indexes[oldest].forget_oldest()
            if not self._indexes[oldest]:
                del self._indexes[oldest]


@dataclass(frozen=True)
class _Found:
    """A draft and what speaks for it."""

    score: float
    """ΣD: draft tokens that are expected to be accepted."""
    length: int
    """Tokens of the text's end that its occurrences share."""
    draft: Draft


_NOTHING = _Found(0.0, 0, Draft.EMPTY)


class SuffixProposer(Retriever):
    """Copies what followed most often. Knows nothing of the engine."""

    def __init__(self, limit: int) -> None:
        """``limit``: tokens of finished outputs that are kept; 0: none, every sequence has its own text alone."""
        self.history = History(limit)
        self._own: dict[Hashable, TextIndex] = {}

    def admit(self, sequence: Running) -> None:
        self._own[sequence.id] = TextIndex()

    def read(self, sequence: Running, length: int) -> None:
        self._follow(sequence, length + 1)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._find(ask).draft for ask in asks]

    def match(self, ask: Ask) -> int:
        """See ``Retriever``."""
        return self._find(ask).length

    def retire(self, sequence: Running) -> None:
        self._own.pop(sequence.id, None)
        if sequence.finish_reason is not None and sequence.request.params.share_history:
            self.history.add(sequence.request.params.tenant, sequence.output)

    def _follow(self, sequence: Running, length: int) -> TextIndex:
        """The index of the sequence's own text, brought up to its first ``length`` tokens."""
        own = self._own[sequence.id]
        own.extend(sequence.tokens[len(own) : length])
        return own

    def _find(self, ask: Ask) -> _Found:
        params = ask.sequence.request.params
        indexes = [self._follow(ask.sequence, len(ask.sequence.tokens))]
        shared = self.history.of(params.tenant) if params.share_history else None
        if shared is not None:
            indexes.append(shared)
        found = [_best(index, ask) for index in indexes]
        return max(found, key=lambda one: one.score)  # of equals the text's own


def _best(index: TextIndex, ask: Ask) -> _Found:
    """The draft that ``index`` speaks for, of all lengths of match."""
    occurrences = index.occurrences(ask.tokens)
    drafts = [
        _grow(index, [one.place for one in occurrences if one.length >= length], length, ask)
        for length in sorted({one.length for one in occurrences}, reverse=True)
    ]
    return max(drafts, key=lambda one: one.score, default=_NOTHING)


def _grow(index: TextIndex, places: list[int], length: int, ask: Ask) -> _Found:
    """A draft of what followed ``places``, the likeliest token first."""
    tokens: list[int] = []
    parents: list[int] = []
    score, order = 0.0, count()
    frontier: list[tuple[float, int, tuple[int, ...], list[int], int]] = []
    """(−D, order, path, the places that go along it, parent of its last token) of each token that may come next."""
    node, likely, path = ROOT, 1.0, tuple[int, ...]()
    while True:
        if len(path) < ask.draft_len:
            share = likely / (len(places) + DOUBT / (length + len(path)))
            for token, along in _followers(index, places, path, ask):
                if len(along) * share >= LEAST:
                    heappush(frontier, (-len(along) * share, next(order), (*path, token), along, node))
        if not frontier or len(tokens) == ask.budget:
            return _Found(score, length if tokens else 0, Draft(tuple(tokens), tuple(parents)))
        unlikely, _, path, places, parent = heappop(frontier)
        node, likely = len(tokens), -unlikely
        tokens.append(path[-1])
        parents.append(parent)
        score += likely


def _followers(index: TextIndex, places: Sequence[int], path: tuple[int, ...], ask: Ask) -> list[tuple[int, list[int]]]:
    """What came after ``places`` and ``path``, and at which of them: the most frequent first, of equals the latest; one for a chain."""
    along: dict[int, list[int]] = {}
    for place in places:
        token = index.follower(place, len(path), (*ask.after, *path))
        if token is not None:
            along.setdefault(token, []).append(place)
    ranked = sorted(along.items(), key=lambda item: -len(item[1]))
    return ranked if ask.branches else ranked[:1]
