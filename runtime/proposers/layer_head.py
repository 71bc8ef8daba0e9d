"""An autoregressive draft head (``mtp``, ``eagle3``): one layer that reads what the target knew, then what it knew itself.

Its cache holds pairs. Pair t has the target's features of position t and the token at t + 1, and foretells the token at t + 2::

    text       x₀ x₁ x₂ x₃ x₄          all but the last in the target's cache: features f₀ … f₃
    pairs      (f₀,x₁) (f₁,x₂) (f₂,x₃) (f₃,x₄)  →  d₅      then (h,d₅) → d₆, (h′,d₆) → d₇ …, h the head's own state of the pair before

A tree is drafted level by level; its pairs lie side by side in the row, and each sees those above it.
What was drafted is dropped after the round, and the tokens that stayed come back as pairs with the target's features.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..draft import Draft
from ..model import CachedModel, Feed
from ..request import Running
from .base import Ask, Proposer, Seen
from .growth import Growth
from .joint import Joint


@dataclass
class _Row:
    """One row of the head's cache. Its positions count from the first pair that it has: queries and keys are turned by distances alone,
    so a text whose beginning was known before the request came just has a shorter memory here."""

    start: int
    """Position of the first pair in the text."""
    features: NDArray[np.float32]
    """[n,H·taps] of the pairs that are not yet in the row."""
    pairs: int = 0
    """Pairs in the row whose features are the target's."""

    def tokens(self, text: Sequence[int]) -> tuple[int, ...]:
        """Those of the pairs that are not yet in the row."""
        first = self.start + self.pairs + 1
        return tuple(text[first : first + len(self.features)])

    def take(self, count: int) -> NDArray[np.float32]:
        """The features of the next ``count`` pairs, which now go into the row."""
        taken, self.features = self.features[:count], self.features[count:]
        self.pairs += count
        return taken


class LayerHeadProposer(Proposer):
    """An engine and a cache of its own. A sequence is drafted for once the target has read one of its tokens."""

    def __init__(self, model: CachedModel, joint: Joint) -> None:
        self.model = model
        self._joint = joint
        self._rows: dict[Hashable, _Row] = {}

    @property
    def engine_seconds(self) -> float:
        return self.model.seconds

    def admit(self, sequence: Running) -> None:
        self.model.begin(sequence.id, ())

    def observe(self, sequence: Running, seen: Seen) -> None:
        features, row = self._joint.features(seen.hidden), self._rows.get(sequence.id)
        if row is None:
            self._rows[sequence.id] = _Row(seen.start, features)
            return
        assert seen.start == row.start + row.pairs + len(row.features), "every position once and in order"
        row.features = np.concatenate([row.features, features])

    def read(self, sequence: Running, length: int) -> None:
        self._catch_up(sequence)

    def start(self, sequence: Running) -> None:
        row = self._rows.get(sequence.id)
        known = () if row is None else sequence.tokens[row.start + 1 : row.start + 1 + row.pairs]
        self.model.start(sequence.id, known)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        growths = {ask.sequence.id: Growth(ask) for ask in asks}
        feeds = {owner: self._pairs(growth.sequence) for owner, growth in growths.items() if growth.open and owner in self._rows}
        while feeds:
            logits = self.model.feed(feeds)
            for owner, feed in feeds.items():
                self.model.cache.commit(owner, np.arange(len(feed.tokens)))
                growths[owner].grow(map(self._joint.row, logits[owner]))
            feeds = {owner: self._next(growths[owner], feed) for owner, feed in feeds.items() if growths[owner].open}
        for owner in growths.keys() & self._rows.keys():
            self.model.cache.truncate(owner, self._rows[owner].pairs)
        return [growth.draft() for growth in growths.values()]

    def retire(self, sequence: Running) -> None:
        self._rows.pop(sequence.id, None)
        self.model.release(sequence.id)

    def _catch_up(self, sequence: Running) -> None:
        """Put all but the last of the new pairs into the row: a draft begins with that one's logits."""
        row = self._rows.get(sequence.id)
        if row is not None and len(row.features) > 1:
            tokens = row.tokens(sequence.tokens)[:-1]
            self.model.prefill(sequence.id, tokens, row.take(len(tokens)))

    def _pairs(self, sequence: Running) -> Feed:
        """What is new since the last draft; a round gives one pair at least."""
        row = self._rows[sequence.id]
        if len(row.features) > self.model.engine.entry.max_step:
            self._catch_up(sequence)
        tokens = row.tokens(sequence.tokens)
        return Feed(tokens, wanted=(len(tokens) - 1,), features=row.take(len(tokens)))

    def _next(self, growth: Growth, fed: Feed) -> Feed:
        """The pairs of the tokens that are to be followed, each with the head's own state of the one above, just ``fed``."""
        tokens, parents = growth.level()
        above = np.array(parents[-len(tokens) :]) - (len(parents) - len(tokens)) + len(fed.tokens)
        return Feed(tokens, parents, tuple(range(len(tokens))), previous=self.model.hidden(growth.sequence.id)[above])
