"""An engine with its cache: what target and draft both are. Tokens go in by owner, logits come out by owner."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from .engine import Engine, Step
from .kv import KvCache
from .prefixes import Prefixes


@dataclass(frozen=True)
class Feed:
    """New tokens of one sequence: a tree written after its valid positions, each token attending to its ancestors."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    """Index of each token's parent among ``tokens``, −1 for the last valid position; None: a chain."""
    wanted: tuple[int, ...] = ()
    """Indices of the tokens whose logits are wanted."""


class CachedModel:
    """One engine and the ``KvCache`` that its passes write. ``seconds`` is the time spent in passes so far."""

    def __init__(self, engine: Engine, rows: int, *, padded: bool = True, remember: int = 0) -> None:
        """``remember``: tokens of past texts whose keys and values are kept for prompts that begin like them."""
        self.engine = engine
        self.cache = KvCache(engine.new_storage(rows), engine.entry)
        self.seconds = 0.0
        probe = engine.entry.probe
        # Where the bits of a row depend on the number of new tokens, every pass that decodes has the same number,
        # and where they depend on the view, it is always the longest.
        self._fixed_step = engine.entry.max_step if padded and probe is not None and not probe.step_invariant else 0
        self._fixed_view = engine.entry.capacity if padded and probe is not None and not probe.view_invariant else 0
        # A remembered text was read and written in passes of any shape: it is as good as a new one only where bits are invariant.
        invariant = probe is not None and probe.step_invariant and probe.batch_invariant and probe.view_invariant
        self.prefixes = Prefixes(remember if invariant else 0)

    def recall(self, owner: Hashable, tokens: Sequence[int]) -> int:
        """Fill ``owner``'s empty row with what is remembered of the beginning of ``tokens``; returns how many that are."""
        saved, shared = self.prefixes.find(tokens)
        if shared:
            self.cache.make_room(shared, owner=owner, at_least=self._fixed_view)
            self.cache.storage.restore(self.cache.row(owner), saved, shared)
            self.cache.commit(owner, np.arange(shared))
        return shared

    def remember(self, owner: Hashable, tokens: Sequence[int]) -> None:
        """Keep the keys and values of ``tokens``, which ``owner``'s row begins with."""
        assert len(tokens) <= self.cache.length(owner), "not all of that has been read"
        if self.prefixes.worth(len(tokens)) and not self.prefixes.knows(tokens):
            self.prefixes.put(tokens, self.cache.storage.save(self.cache.row(owner), len(tokens)))

    def prefill(self, owner: Hashable, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to ``owner``'s row, in pieces that the engine takes; they become valid at once.

        Raises:
            CapacityError: they do not fit.
        """
        piece = self.engine.entry.max_prefill
        for start in range(0, len(tokens), piece):
            part = tuple(tokens[start : start + piece])
            row = self.cache.row(owner)
            view = self.cache.make_room(len(part), owner=owner, at_least=self._fixed_view)
            self._forward(self._step({row: Feed(part)}, range(row, row + 1), len(part), view), row)
            self.cache.commit(owner, np.arange(len(part)))

    def feed(self, feeds: Mapping[Hashable, Feed], *, view: int = 0) -> dict[Hashable, NDArray[np.float32]]:
        """One pass over every held row: logits [wanted, V] of each owner in ``feeds``; nothing becomes valid.

        Owners without a feed are padding. The arrays are views that the next pass overwrites. ``view`` asks for a
        cache view of at least so many positions.

        Raises:
            CapacityError: a row would pass the engine's capacity.
        """
        width = max(self._fixed_step, *(len(feed.tokens) for feed in feeds.values()))
        assert width <= self.engine.entry.max_step, f"{width} new tokens, the engine takes {self.engine.entry.max_step} a pass"
        view = self.cache.make_room(width, at_least=max(view, self._fixed_view))
        rows = {self.cache.row(owner): feed for owner, feed in feeds.items()}
        logits = self._forward(self._step(rows, range(self.cache.live), width, view), 0)
        return {owner: logits[self.cache.row(owner), : len(feed.wanted)] for owner, feed in feeds.items()}

    def _forward(self, step: Step, first_row: int) -> NDArray[np.float32]:
        began = perf_counter()
        logits = self.engine.forward(step, self.cache.storage, first_row)
        self.seconds += perf_counter() - began
        return logits

    def _step(self, feeds: Mapping[int, Feed], rows: range, width: int, view: int) -> Step:
        batch, wanted = len(rows), max(1, *(len(feed.wanted) for feed in feeds.values()), 1)
        lengths = self.cache.lengths
        step = Step(
            input_ids=np.zeros((batch, width), np.int64),
            position_ids=np.zeros((batch, width), np.int64),
            write_index=lengths[rows.start : rows.stop],
            attention_mask=np.zeros((batch, 1, width, view), np.bool_),
            logit_rows=np.zeros((batch, wanted), np.int64),
        )
        for index, row in enumerate(rows):
            # A query that attends to nothing gives NaN: padding attends to position 0.
            step.attention_mask[index, 0, :, 0] = True
            feed = feeds.get(row)
            if feed is None:
                continue
            start, count = int(lengths[row]), len(feed.tokens)
            depths, mask = _chain(start, count, view) if feed.parents is None else _tree(start, feed.parents, view)
            window = self.engine.entry.sliding_window
            if window is not None:
                mask &= _in_window(start, depths, view, window)
            step.input_ids[index, :count] = feed.tokens
            step.position_ids[index, :count] = start + depths
            step.attention_mask[index, 0, :count] = mask
            step.logit_rows[index, : len(feed.wanted)] = feed.wanted
        return step


def _chain(start: int, count: int, view: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Depths [count] and mask [count,view] of tokens that follow each other: each sees all before it and itself."""
    depths = np.arange(count)
    return depths, np.arange(view) <= start + depths[:, None]


def _tree(start: int, parents: Sequence[int], view: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Depths and mask of a tree: each token sees the valid positions, its ancestors and itself. Parents precede children."""
    depths = np.zeros(len(parents), np.int64)
    mask = np.zeros((len(parents), view), np.bool_)
    mask[:, :start] = True
    for node, parent in enumerate(parents):
        if parent >= 0:
            depths[node] = depths[parent] + 1
            mask[node] = mask[parent]
        mask[node, start + node] = True
    return depths, mask


def _in_window(start: int, depths: NDArray[np.int64], view: int, window: int) -> NDArray[np.bool_]:
    """[count,view]: positions fewer than ``window`` before each token. New tokens lie at start + index but stand at start + depth."""
    stands_at = np.arange(view)
    stands_at[start : start + len(depths)] = start + depths
    return stands_at > (start + depths)[:, None] - window
