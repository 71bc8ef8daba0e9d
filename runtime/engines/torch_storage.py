"""A KV cache in torch memory: one static view, updated in place by the plans that are bound to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import EngineEntry
from specbuild.errors import CapacityError

from ..engine import KvStorage

if TYPE_CHECKING:
    import torch


class TorchStorage:
    """Keys and values [2·layers, rows, kv_heads, capacity, head_dim] on ``device``; layer l has keys at 2l, values at 2l + 1.

    ``stream`` orders the moves with the passes of the engine that owns it (None: the current stream, or a CPU).
    """

    def __init__(self, entry: EngineEntry, rows: int, device: str, stream: torch.cuda.Stream | None = None) -> None:
        import torch

        self.rows = rows
        self.view = entry.capacity
        self.graphs: dict[tuple[int, int, int, int], tuple[torch.cuda.CUDAGraph, Any]] = {}
        """(first row, B, S, R) → captured pass over this memory, and the context that it points into."""
        self._stream = stream
        with torch.cuda.stream(stream):
            # Zeros, not garbage: a masked position weighs 0, and 0 · NaN would be NaN.
            shape = (2 * entry.num_layers, rows, entry.num_kv_heads, self.view, entry.head_dim)
            self.tensor = torch.zeros(shape, dtype=getattr(torch, entry.kv_dtype), device=device)

    def resize(self, view: int, lengths: NDArray[np.int64]) -> None:
        """The view is always the whole capacity: nothing moves, a longer one is refused."""
        if view > self.view:
            raise CapacityError(
                f"the pass needs {view} cache positions, the engine has {self.view}; build with a larger target.max_seq_len"
            )

    def copy_row(self, source: KvStorage, row: int, target: int, length: int) -> None:
        assert isinstance(source, TorchStorage), "rows are copied between storages of one engine"
        import torch

        with torch.cuda.stream(self._stream):
            self.tensor[:, target, :, :length] = source.tensor[:, row, :, :length]

    def save(self, row: int, length: int) -> torch.Tensor:
        import torch

        with torch.cuda.stream(self._stream):
            return self.tensor[:, row, :, :length].clone()

    def restore(self, row: int, saved: torch.Tensor, length: int) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            self.tensor[:, row, :, :length] = saved[:, :, :length]

    def move_tokens(self, row: int, sources: NDArray[np.int64], start: int) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            positions = torch.from_numpy(sources).to(self.tensor.device)
            # Gathered into memory of its own before it is written: source and target ranges may overlap.
            self.tensor[:, row, :, start : start + len(sources)] = self.tensor[:, row].index_select(2, positions)

    def touch(self) -> None:
        """The memory was taken when this was made."""


def check_bounds(write_index: NDArray[np.int64], step: int, capacity: int) -> None:
    """Refuse a pass that would write outside the cache: TensorRT drops such writes silently.

    Raises:
        CapacityError: a row's ``write_index … write_index + step − 1`` is not within ``0 … capacity − 1``.
    """
    if int(write_index.min()) < 0 or int(write_index.max()) + step > capacity:
        raise CapacityError(f"{step} new tokens at {write_index.tolist()} pass the cache view of {capacity}; raise target.max_seq_len")
