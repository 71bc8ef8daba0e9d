"""Drafts in, one target pass, scores out. The target's cache is moved here and nowhere else."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .acceptance import Verdict
from .draft import Draft
from .model import CachedModel, Feed
from .proposers.base import Seen
from .request import Running
from .scheduler import Plan


class Verifier:
    """The target. Between rounds its cache holds all tokens of a sequence but the last."""

    def __init__(self, target: CachedModel) -> None:
        self._target = target

    @property
    def kv_tokens(self) -> int:
        """Cache positions held by sequences."""
        return int(self._target.cache.lengths.sum() + self._target.reading.lengths.sum())

    @property
    def engine_seconds(self) -> float:
        """Time spent in the target's passes so far."""
        return self._target.seconds

    def check_rows(self, owners: Iterable[Hashable]) -> None:
        """Assert that exactly ``owners`` hold rows, one each."""
        self._target.check()
        assert set(self._target.owners) == set(owners), "a row is held for nobody, or somebody has none"

    def admit(self, sequence: Running) -> int:
        """Take up the prompt of ``sequence``; returns how many of its tokens need not be read.

        Raises:
            CapacityError: another prompt is being read.
        """
        return self._target.begin(sequence.id, sequence.tokens[:-1])

    def unread(self, sequence: Running) -> int:
        """Prompt tokens not yet in the cache; the last one is fed by the first round."""
        return len(sequence.tokens) - 1 - self._target.length(sequence.id)

    def read(self, sequence: Running, count: int) -> Seen | None:
        """Read the next ``count`` prompt tokens."""
        start = self._target.length(sequence.id)
        hidden = self._target.prefill(sequence.id, sequence.tokens[start : start + count])
        return None if hidden is None else Seen(start, hidden)

    def start(self, sequence: Running) -> None:
        """All has been read: the sequence joins those that decode."""
        self._target.start(sequence.id, sequence.tokens[:-1])

    def check(self, plan: Plan) -> None:
        """Assert what must hold when a round starts."""
        for sequence in plan.sequences:
            cached = self._target.cache.length(sequence.id)
            assert cached == len(sequence.tokens) - 1, f"{sequence.id!r}: {cached} cached of {len(sequence.tokens)} tokens"

    def score(self, plan: Plan, drafts: Sequence[Draft]) -> list[NDArray[np.float32]]:
        """Logits [1 + len(draft), V] for each sequence: after its last token, then after each node. Valid until the next pass."""
        feeds = {
            sequence.id: Feed(
                tokens=(sequence.tokens[-1], *draft.tokens),
                parents=None if draft.is_chain else (-1, *(parent + 1 for parent in draft.parents)),
                wanted=tuple(range(1 + len(draft))),
            )
            for sequence, draft in zip(plan.sequences, drafts, strict=True)
        }
        scores = self._target.feed(feeds)
        return [scores[sequence.id] for sequence in plan.sequences]

    def commit(self, plan: Plan, verdicts: Sequence[Verdict]) -> list[Seen | None]:
        """Keep the last token and the accepted path of each sequence, the tail is the next round's last token; returns what was seen at
        them."""
        paths = [np.array([0, *(node + 1 for node in verdict.accepted)]) for verdict in verdicts]
        seen = [self._seen(sequence, path) for sequence, path in zip(plan.sequences, paths, strict=True)]
        for sequence, path in zip(plan.sequences, paths, strict=True):
            self._target.cache.commit(sequence.id, path)
        return seen

    def _seen(self, sequence: Running, path: NDArray[np.int64]) -> Seen | None:
        if self._target.engine.hidden is None:
            return None
        return Seen(self._target.length(sequence.id), self._target.hidden(sequence.id)[path])

    def retire(self, sequence: Running) -> None:
        """Take the row of ``sequence`` back, if it came to have one; a finished text is remembered: a chat goes on from it."""
        if sequence.id in self._target.owners:
            known = self._target.length(sequence.id) if sequence.finish_reason is not None else 0
            self._target.release(sequence.id, sequence.tokens[:known])
