"""What travels between host and GPU: the inputs of a pass packed into one copy, its logits in another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import EngineEntry

from ..engine import Step
from .tensorrt_plan import Limits

if TYPE_CHECKING:
    import torch

ALIGNMENT = 256
"""Bytes; what CUDA's own allocations have, so that no kernel sees an unaligned input."""


class Staging:
    """Pinned host memory and device memory for one profile, as large as its largest pass and never moved: captured
    passes keep the addresses, which follow from a pass's shape alone."""

    def __init__(self, entry: EngineEntry, limits: Limits, device: str) -> None:
        import torch

        pinned = device != "cpu"
        size = layout(limits.batch, limits.step, limits.rows, entry.capacity)[-1].end
        self._host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._device = torch.empty(size, dtype=torch.uint8, device=device)
        self._vocab = entry.vocab_size
        self._logits = torch.empty(limits.batch * limits.rows * self._vocab, dtype=torch.float32, device=device)
        self._host_logits = torch.empty(self._logits.numel(), dtype=torch.float32, pin_memory=pinned)
        self._fields: tuple[Field, ...] = ()

    @property
    def logits_pointer(self) -> int:
        """Device address of the logits."""
        return self._logits.data_ptr()

    def put(self, step: Step) -> None:
        """Enqueue the copy of a step's inputs to the device. The last pass must have been taken."""
        (batch, length), rows, view = step.input_ids.shape, step.logit_rows.shape[1], step.attention_mask.shape[3]
        self._fields = layout(batch, length, rows, view)
        host = self._host.numpy()
        for field in self._fields:
            array: NDArray[np.generic] = getattr(step, field.name)
            assert (array.shape, array.dtype) == (field.shape, field.dtype), f"{field.name}: {array.dtype} {array.shape}"
            host[field.start : field.end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        end = self._fields[-1].end
        self._device[:end].copy_(self._host[:end], non_blocking=True)

    def inputs(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Name, shape and device address of each input of the step that was put."""
        base = self._device.data_ptr()
        return ((field.name, field.shape, base + field.start) for field in self._fields)

    def take(self, stream: torch.cuda.Stream | None) -> NDArray[np.float32]:
        """Logits [B,R,V] of the pass, once it is done; valid until the next one."""
        batch, rows = self._fields[-1].shape
        count = batch * rows * self._vocab
        self._host_logits[:count].copy_(self._logits[:count], non_blocking=True)
        if stream is not None:
            stream.synchronize()
        logits: NDArray[np.float32] = self._host_logits[:count].numpy().reshape(batch, rows, self._vocab)
        return logits


@dataclass(frozen=True)
class Field:
    """Where one input lies in the packed memory: bytes ``start … end − 1``."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    start: int

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


def layout(batch: int, step: int, rows: int, view: int) -> tuple[Field, ...]:
    """The inputs of a pass one behind the other, each aligned; ``logit_rows`` is the last. Grows with every argument."""
    inputs: tuple[tuple[str, type[np.generic], tuple[int, ...]], ...] = (
        ("input_ids", np.int64, (batch, step)),
        ("position_ids", np.int64, (batch, step)),
        ("write_index", np.int64, (batch,)),
        ("attention_mask", np.bool_, (batch, 1, step, view)),
        ("logit_rows", np.int64, (batch, rows)),
    )
    fields: list[Field] = []
    for name, dtype, shape in inputs:
        start = -(-fields[-1].end // ALIGNMENT) * ALIGNMENT if fields else 0
        fields.append(Field(name, np.dtype(dtype), shape, start))
    return tuple(fields)
