"""Early exit (LayerSkip, 2404.16710): the target's own first layers draft, with its own norm and head after them.

They draft in the target's rows, past what is valid there: what they read, the pass that verifies need not read again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from ..draft import Draft
from ..engines.split import SplitEngine
from ..model import CachedModel, Feed
from .base import Ask, Proposer
from .growth import Growth


class EarlyExitProposer(Proposer):
    """Keeps nothing of its sequences: the target's cache is its own."""

    def __init__(self, target: CachedModel) -> None:
        assert isinstance(target.engine, SplitEngine), "the target was compiled in two"
        self._model = target.sharing(target.engine.lower)
        self._longest = target.engine.entry.max_step

    @property
    def engine_seconds(self) -> float:
        return self._model.seconds

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        cache = self._model.cache
        # Never cut: the pass that verifies goes on from just what has been read here.
        growths = [Growth(replace(ask.chain, least=None)) for ask in asks]
        lengths: dict[Hashable, int] = {growth.sequence.id: cache.length(growth.sequence.id) for growth in growths if growth.open}
        # The view of the pass that will verify: a view that changed in between would forget what has been read ahead.
        view = max(cache.lengths.tolist(), default=0) + self._longest
        while going := [growth for growth in growths if growth.open]:
            feeds: dict[Hashable, Feed] = {
                growth.sequence.id: Feed(((growth.after or growth.sequence.tokens)[-1],), wanted=(0,)) for growth in going
            }
            logits = self._model.feed(feeds, view=view)
            for growth in going:
                growth.grow(logits[growth.sequence.id])
                cache.commit(growth.sequence.id, np.arange(1))
        for owner, length in lengths.items():
            cache.truncate(owner, length)
        return [growth.draft() for growth in growths]
