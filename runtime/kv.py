"""The KV cache of one engine: who holds which row, how many positions of it are valid, and that none is lost."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import EngineEntry
from specbuild.errors import CapacityError

from .engine import KvStorage


class KvCache:
    """Rows 0 … live − 1 are held, in the order of admission but for rows that moved down into a hole.

    A position is written by a pass and becomes valid by ``commit`` alone; what lies past a row's length is dead and is
    overwritten by the next pass, so that a rejected draft leaves no trace.
    """

    def __init__(self, storage: KvStorage, entry: EngineEntry) -> None:
        self.storage = storage
        self._entry = entry
        self._owners: list[Hashable] = []
        self._lengths = np.zeros(storage.rows, np.int64)

    @property
    def live(self) -> int:
        """Rows held."""
        return len(self._owners)

    @property
    def free(self) -> int:
        """Rows that can still be reserved."""
        return self.storage.rows - self.live

    @property
    def owners(self) -> tuple[Hashable, ...]:
        """Who holds rows 0 … live − 1."""
        return tuple(self._owners)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[live] valid positions of each held row; a copy."""
        return self._lengths[: self.live].copy()

    def row(self, owner: Hashable) -> int:
        """The row that ``owner`` holds."""
        return self._owners.index(owner)

    def length(self, owner: Hashable) -> int:
        """Valid positions of ``owner``'s row."""
        return int(self._lengths[self.row(owner)])

    def reserve(self, owner: Hashable) -> int:
        """Give ``owner`` an empty row.

        Raises:
            CapacityError: every row is held.
        """
        assert owner not in self._owners, f"{owner!r} holds a row already"
        if not self.free:
            raise CapacityError(f"all {self.storage.rows} cache rows are held; wait for one or build with a larger target.max_batch_size")
        self._owners.append(owner)
        self._lengths[self.live - 1] = 0
        return self.live - 1

    def adopt(self, owner: Hashable, other: KvCache, *, at_least: int = 0) -> None:
        """Take ``owner``'s row over from another cache of the same engine; the view becomes ``at_least`` so long.

        Raises:
            CapacityError: every row is held.
        """
        length = other.length(owner)
        row = self.reserve(owner)
        self.make_room(length, owner=owner, at_least=at_least)
        self.storage.copy_row(other.storage, other.row(owner), row, length)
        self._lengths[row] = length
        other.release(owner)

    def make_room(self, step: int, *, owner: Hashable | None = None, at_least: int = 0) -> int:
        """Make the view long enough for ``step`` new positions on every held row, or on ``owner``'s, and ``at_least``; returns the view.

        A view that became more than twice too long (a long sequence has left) is shortened: attention reads all of it.

        Raises:
            CapacityError: a row would pass the engine's capacity.
        """
        floor = self._entry.capacity if self._entry.static_view else at_least
        longest = int(self._lengths[: self.live].max(initial=0))
        needed = max(longest, (longest if owner is None else self.length(owner)) + step, floor)
        if needed > self.storage.view or self.storage.view > 2 * needed + 64:
            self.storage.resize(needed, self._lengths[: self.live])
        return self.storage.view

    def commit(self, owner: Hashable, path: NDArray[np.int64]) -> None:
        """Make the written positions ``length + path`` of ``owner``'s row valid, in that order.

        ``path`` holds offsets into the last pass's new tokens, ascending. A chain's is 0, 1, 2, …: nothing moves. A branch
        of a tree is gathered to the front::

            valid ▏ written by the pass            path = [0, 2, 5]
            …… ▏ 0 1 2 3 4 5          →   …… 0 2 5 ▏ dead
        """
        row = self.row(owner)
        start = int(self._lengths[row])
        kept = len(path)
        assert start + (int(path[-1]) if kept else 0) < self.storage.view, "committed past what a pass can have written"
        if kept and int(path[-1]) != kept - 1:
            moved = int(np.argmax(path != np.arange(kept)))
            self.storage.move_tokens(row, start + path[moved:], start + moved)
        self._lengths[row] = start + kept

    def truncate(self, owner: Hashable, length: int) -> None:
        """Declare all but the first ``length`` positions of ``owner``'s row dead."""
        row = self.row(owner)
        assert 0 <= length <= self._lengths[row], f"cannot truncate {self._lengths[row]} positions to {length}"
        self._lengths[row] = length

    def release(self, owner: Hashable) -> None:
        """Take ``owner``'s row back; the last row moves into the hole, so that passes run over rows without gaps."""
        row, last = self.row(owner), self.live - 1
        owners, lengths = self._owners.copy(), self._lengths.copy()
        owners[row], lengths[row] = owners[last], lengths[last]
        owners.pop()
        lengths[last] = 0
        if row != last:
            self.storage.copy_row(self.storage, last, row, int(self._lengths[last]))
        # Together, when the row has moved: an interruption before finds everything as it was.
        self._owners, self._lengths = owners, lengths

    def check(self) -> None:
        """Assert that rows are conserved: held once each, lengths inside the view, nothing valid outside them."""
        assert len(set(self._owners)) == self.live <= self.storage.rows, "a row is held twice"
        assert (self._lengths[self.live :] == 0).all(), "a free row has valid positions"
        assert (self._lengths[: self.live] <= max(self.storage.view, 0)).all(), "valid positions past the view"
