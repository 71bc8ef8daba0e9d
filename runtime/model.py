"""An engine with its cache: what target and draft both are. Tokens go in by owner, logits come out by owner."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from .engine import Engine, Step
from .kv import KvCache
from .prefixes import Prefixes, common


@dataclass(frozen=True)
class Feed:
    """New tokens of one sequence: a tree written after its valid positions, each token attending to its ancestors."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    """Index of each token's parent among ``tokens``, −1 for the last valid position; None: a chain. Where there are more parents than
    tokens, the first of them are those of the last valid positions: a tree that grows by ``tokens``, whose root −1 lies before it."""
    wanted: tuple[int, ...] = ()
    """Indices of the tokens whose logits are wanted."""
    features: NDArray[np.float32] | None = None
    """[tokens,H·taps] of a draft head; None: zeros."""
    previous: NDArray[np.float32] | None = None
    """[tokens,H] likewise."""


class CachedModel:
    """One engine and the caches that its passes write. ``seconds`` is the time spent in passes so far.

    A prompt is read in a cache of its own, one at a time, and joins the rows that decode when it has been read: until then it
    pads nobody's pass and lengthens nobody's view.
    """

    def __init__(self, engine: Engine, rows: int, *, padded: bool = True, remember: int = 0, resident: bool = False) -> None:
        """``remember``: tokens of past texts whose keys and values are kept; where it is not 0, prompts that begin like them, or
        like one that decodes, are not read again. ``resident``: take the caches' memory now rather than as it is written."""
        self.engine = engine
        self.cache = KvCache(engine.new_storage(rows), engine.entry)
        """Of those that decode: rows of one batched pass."""
        self.reading = KvCache(engine.new_storage(1), engine.entry)
        """Of the one whose prompt is being read."""
        if resident:
            self.cache.storage.touch()
            self.reading.storage.touch()
        self.seconds = 0.0
        probe = engine.entry.probe
        # Where the bits of a row depend on the number of new tokens, every pass that decodes has the same number,
        # and where they depend on the view, it is always the longest.
        self._fixed_step = engine.entry.max_step if padded and probe is not None and not probe.step_invariant else 0
        self._fixed_view = engine.entry.capacity if padded and probe is not None and not probe.view_invariant else 0
        # A remembered text was read and written in passes of any shape: it is as good as a new one only where bits are invariant.
        invariant = probe is not None and probe.step_invariant and probe.batch_invariant and probe.view_invariant
        self.prefixes = Prefixes(remember if invariant else 0)
        self._prompts: dict[Hashable, NDArray[np.int64]] = {}
        """Of those that decode: what their rows begin with."""

    @property
    def owners(self) -> tuple[Hashable, ...]:
        """Who holds a row, the one whose prompt is being read last."""
        return (*self.cache.owners, *self.reading.owners)

    def sharing(self, engine: Engine) -> CachedModel:
        """A model of the very same caches whose passes are those of ``engine``."""
        other = copy(self)
        other.engine, other.seconds = engine, 0.0
        return other

    def length(self, owner: Hashable) -> int:
        """Valid positions of ``owner``'s row."""
        return self._home(owner).length(owner)

    def begin(self, owner: Hashable, prompt: Sequence[int]) -> int:
        """Take up a prompt; returns how many of its first tokens need not be read, because a text that is known begins with them.

        Raises:
            CapacityError: another prompt is being read.
        """
        self.reading.reserve(owner)
        wanted = np.array(prompt, np.int64)
        saved, shared = self.prefixes.find(wanted)
        neighbour, alike = max(
            ((other, common(text, wanted)) for other, text in self._prompts.items()), key=itemgetter(1), default=(None, 0)
        )
        known = max(shared, alike) if self.prefixes.worth(max(shared, alike)) else 0
        if known:
            self.reading.make_room(known, at_least=self._fixed_view)
            if alike >= shared:
                self.reading.storage.copy_row(self.cache.storage, self.cache.row(neighbour), 0, known)
            else:
                self.reading.storage.restore(0, saved, known)
            self.reading.commit(owner, np.arange(known))
        return known

    def prefill(self, owner: Hashable, tokens: Sequence[int], features: NDArray[np.float32] | None = None) -> NDArray[np.float32] | None:
        """Append ``tokens`` to ``owner``'s row, in pieces that the engine takes; they become valid at once.

        ``features``: as in ``Feed``. Returns the hidden states [tokens,W], a copy; None where the engine gives none out.

        Raises:
            CapacityError: they do not fit.
        """
        cache, piece = self._home(owner), self.engine.entry.max_prefill
        hidden: list[NDArray[np.float32]] = []
        for start in range(0, len(tokens), piece):
            part = tuple(tokens[start : start + piece])
            row = cache.row(owner)
            # A prompt's view grows by fractions of itself: growing copies all of it, and attention reads all of it.
            ahead = min(cache.length(owner) * 5 // 4, self.engine.entry.capacity) if cache is self.reading else 0
            width = self.engine.entry.padded(len(part), 1)
            view = cache.make_room(width, owner=owner, at_least=max(ahead, self._fixed_view))
            feed = Feed(part, features=None if features is None else features[start : start + piece])
            self._forward(cache, self._step(cache, {row: feed}, range(row, row + 1), width, view), row)
            cache.commit(owner, np.arange(len(part)))
            if self.engine.hidden is not None:
                hidden.append(self.engine.hidden[0, : len(part)].copy())
        return np.concatenate(hidden) if hidden else None

    def start(self, owner: Hashable, prompt: Sequence[int]) -> None:
        """The prompt has been read: its row joins those that decode."""
        assert self.reading.length(owner) == len(prompt), "not all of it has been read"
        self.cache.adopt(owner, self.reading, at_least=max(len(prompt) + self.engine.entry.max_step, self._fixed_view))
        self._prompts[owner] = np.array(prompt, np.int64)

    def release(self, owner: Hashable, text: Sequence[int] = ()) -> None:
        """Take ``owner``'s row back if it holds one. ``text``, which its row begins with, is remembered."""
        if owner in self.cache.owners and self.prefixes.worth(len(text)) and not self.prefixes.knows(text):
            assert len(text) <= self.cache.length(owner), "not all of that is in the row"
            self.prefixes.put(text, self.cache.storage.save(self.cache.row(owner), len(text)))
        self._prompts.pop(owner, None)
        for cache in (self.cache, self.reading):
            if owner in cache.owners:
                cache.release(owner)

    def check(self) -> None:
        """Assert that rows are conserved and that nobody has two."""
        self.cache.check()
        self.reading.check()
        assert len(set(self.owners)) == len(self.owners), "somebody holds two rows"
        assert set(self._prompts) <= set(self.cache.owners), "a prompt is known of somebody who holds no row"

    def feed(self, feeds: Mapping[Hashable, Feed], *, view: int = 0) -> dict[Hashable, NDArray[np.float32]]:
        """One pass over every row that decodes: logits [wanted, V] of each owner in ``feeds``; nothing becomes valid.

        Owners without a feed are padding. The arrays are views that the next pass overwrites. ``view`` asks for a
        cache view of at least so many positions.

        Raises:
            CapacityError: a row would pass the engine's capacity.
        """
        width = max(self._fixed_step, *(len(feed.tokens) for feed in feeds.values()))
        assert width <= self.engine.entry.max_step, f"{width} new tokens, the engine takes {self.engine.entry.max_step} a pass"
        width = self.engine.entry.padded(width, self.cache.live)
        view = self.cache.make_room(width, at_least=max(view, self._fixed_view))
        rows = {self.cache.row(owner): feed for owner, feed in feeds.items()}
        logits = self._forward(self.cache, self._step(self.cache, rows, range(self.cache.live), width, view), 0)
        return {owner: logits[self.cache.row(owner), : len(feed.wanted)] for owner, feed in feeds.items()}

    def hidden(self, owner: Hashable) -> NDArray[np.float32]:
        """Hidden states [≥ S,W] of ``owner``'s tokens in the last ``feed``, valid until the next pass."""
        assert self.engine.hidden is not None, "the engine gives out no hidden states"
        states: NDArray[np.float32] = self.engine.hidden[self.cache.row(owner)]
        return states

    def _home(self, owner: Hashable) -> KvCache:
        return self.reading if owner in self.reading.owners else self.cache

    def _forward(self, cache: KvCache, step: Step, first_row: int) -> NDArray[np.float32]:
        began = perf_counter()
        logits = self.engine.forward(step, cache.storage, first_row)
        self.seconds += perf_counter() - began
        return logits

    def _step(self, cache: KvCache, feeds: Mapping[int, Feed], rows: range, width: int, view: int) -> Step:
        batch, lengths, entry = len(rows), cache.lengths, self.engine.entry
        wanted = entry.padded(max(1, *(len(feed.wanted) for feed in feeds.values()), 1), batch)
        step = Step(
            input_ids=np.zeros((batch, width), np.int64),
            position_ids=np.zeros((batch, width), np.int64),
            write_index=lengths[rows.start : rows.stop],
            attention_mask=np.zeros((batch, 1, width, view), np.bool_),
            logit_rows=np.zeros((batch, wanted), np.int64),
            features=np.zeros((batch, width, entry.feature_width), np.float32) if entry.feature_width else None,
            previous=np.zeros((batch, width, entry.hidden_size), np.float32) if entry.feature_width else None,
        )
        for index, row in enumerate(rows):
            # A query that attends to nothing gives NaN: padding attends to position 0.
            step.attention_mask[index, 0, :, 0] = True
            feed = feeds.get(row)
            if feed is None:
                continue
            count, grown = len(feed.tokens), 0 if feed.parents is None else len(feed.parents) - len(feed.tokens)
            start = int(lengths[row]) - grown
            depths, mask = _chain(start, count, view) if feed.parents is None else _tree(start, feed.parents, view)
            window = self.engine.entry.sliding_window
            if window is not None:
                mask &= _in_window(start, depths, view, window)
            step.input_ids[index, :count] = feed.tokens
            step.position_ids[index, :count] = start + depths[grown:]
            step.attention_mask[index, 0, :count] = mask[grown:]
            step.logit_rows[index, : len(feed.wanted)] = feed.wanted
            if step.features is not None and feed.features is not None:
                step.features[index, :count] = feed.features
            if step.previous is not None and feed.previous is not None:
                step.previous[index, :count] = feed.previous
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
    """[count,view]: positions fewer than ``window`` before each token. Tokens of a tree lie at start + index but stand at start + depth."""
    stands_at = np.arange(view)
    stands_at[start : start + len(depths)] = start + depths
    return stands_at > (start + depths)[:, None] - window
