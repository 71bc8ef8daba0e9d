"""ONNX Runtime on the CPU: every tensor bound by pointer, the cache updated in place."""

from __future__ import annotations

import os
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from specbuild.bundle import REBUILD, EngineEntry
from specbuild.errors import BundleError, CapacityError, EnvironmentLacksError, RequestError

from ..engine import KvStorage, Step
from .version import check_version

VIEW_STEP = 64
"""The cache view grows by multiples of this many positions: attention reads the whole view, growing it copies the cache."""


class Binding:
    """A run of rows bound once, and memory of their passes' other inputs and outputs: to bind takes longer than to copy the little
    that changes from pass to pass."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.io = session.io_binding()
        self._inputs: dict[str, NDArray[Any]] = {}
        self._outputs: dict[str, tuple[int, ...]] = {}
        """(address, shape)"""

    def put(self, name: str, array: NDArray[Any]) -> None:
        """What the next pass reads as ``name``."""
        held = self._inputs.get(name)
        if held is not None and held.shape == array.shape:
            np.copyto(held, array)
            return
        held = self._inputs[name] = array.copy()
        self.io.bind_input(name, "cpu", 0, held.dtype.type, held.shape, held.ctypes.data)

    def take(self, name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Where the next pass writes ``name``."""
        place = (array.ctypes.data, *array.shape)
        if self._outputs.get(name) != place:
            self._outputs[name] = place
            self.io.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return array


class OnnxRuntimeStorage:
    """Keys and values [2·layers, rows, kv_heads, view, head_dim], laid out anew within the same memory when the view changes."""

    def __init__(self, entry: EngineEntry, rows: int) -> None:
        self.rows = rows
        self.view = 0
        self.bindings: dict[tuple[int, int], Binding] = {}
        """(first row, rows) → binding to this layout; emptied when it changes."""
        self._entry = entry
        # Room for the longest view; the system gives memory as it is touched. Zeros, then old keys and values: always finite,
        # because a masked position weighs 0, and 0 · NaN would be NaN.
        size = 2 * entry.num_layers * rows * entry.num_kv_heads * entry.capacity * entry.head_dim
        try:
            self._memory = np.zeros(size, np.float32)
        except MemoryError:
            raise EnvironmentLacksError(
                f"the cache of {rows} sequences of {entry.capacity} tokens takes {4 * size:,} bytes, more than this machine gives; "
                "take a smaller batch, or build with a smaller target.max_seq_len"
            ) from None
        self.tensor = self._laid_out(0)

    def _laid_out(self, view: int) -> NDArray[np.float32]:
        entry = self._entry
        shape = (2 * entry.num_layers, self.rows, entry.num_kv_heads, view, entry.head_dim)
        return self._memory[: prod(shape)].reshape(shape)

    def resize(self, view: int, lengths: NDArray[np.int64]) -> None:
        """See ``KvStorage``.

        Each run of positions moves by itself, the last one first when the view grows (the first one first when it shrinks), so
        that none is overwritten before it has moved::

            old   ▏0 0 0▏1 1 1▏2 2 2▏
            new   ▏0 0 0 ·▏1 1 1 ·▏2 2 2 ·▏
        """
        if view > self._entry.capacity:
            raise CapacityError(
                f"the pass needs {view} cache positions, the engine was built for {self._entry.capacity}; raise target.max_seq_len"
            )
        view = min(-(-view // VIEW_STEP) * VIEW_STEP, self._entry.capacity)
        if view == self.view:
            return
        old, new = self.tensor, self._laid_out(view)
        runs = [(half, row, head) for half in range(old.shape[0]) for row in range(len(lengths)) for head in range(old.shape[2])]
        for half, row, head in reversed(runs) if view > self.view else runs:
            length = lengths[row]
            new[half, row, head, :length] = old[half, row, head, :length]
        self.tensor, self.view = new, view
        self.bindings.clear()

    def copy_row(self, source: KvStorage, row: int, target: int, length: int) -> None:
        assert isinstance(source, OnnxRuntimeStorage), "rows are copied between storages of one engine"
        self.tensor[:, target, :, :length] = source.tensor[:, row, :, :length]

    def save(self, row: int, length: int) -> NDArray[np.float32]:
        return self.tensor[:, row, :, :length].copy()

    def restore(self, row: int, saved: NDArray[np.float32], length: int) -> None:
        self.tensor[:, row, :, :length] = saved[:, :, :length]

    def move_tokens(self, row: int, sources: NDArray[np.int64], start: int) -> None:
        self.tensor[:, row, :, start : start + len(sources)] = self.tensor[:, row][:, :, sources]

    def touch(self) -> None:
        self._memory.fill(0)


class OnnxRuntimeEngine:
    """A session and, for each run of rows that is passed over, a binding whose cache pointers are set once."""

    def __init__(self, path: Path, entry: EngineEntry, *, threads: int | None = None) -> None:
        check_version(entry, ort.__version__)
        cores = os.cpu_count() or 1
        if threads is not None and not 1 <= threads <= cores:  # each takes memory when the session starts
            raise RequestError(f"threads is {threads}, but this machine has {cores} CPU cores; give 1 to {cores}, or nothing for all")
        self.entry = entry
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads or 0
        # int8 activations in the 4- and 8-bit kernels: the fast ones, and the same for every row count.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
        # Threads spin between the operators of a pass, not between passes: an idle engine's would take the cores of the one at work
        # (a round of four draft passes and one target pass on two cores: 27 ms, against 44 to 54).
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises its own pybind classes, all straight from Exception
            raise BundleError(f"{path}: onnxruntime {ort.__version__} does not load it ({error}); {REBUILD}") from error
        self._buffers: dict[str, NDArray[np.float32]] = {}
        """Output → memory for it, as large as any pass needed so far."""
        taken = {value.name for value in self._session.get_inputs()}
        self._inputs = tuple(field.name for field in fields(Step) if field.name in taken)
        self._hidden_width = next((value.shape[-1] for value in self._session.get_outputs() if value.name == "hidden"), 0)
        self._hidden: NDArray[np.float32] | None = None
        self._alone = Binding(self._session)
        """Of passes without a cache."""

    @property
    def hidden(self) -> NDArray[np.float32] | None:
        return self._hidden

    def new_storage(self, rows: int) -> OnnxRuntimeStorage:
        return OnnxRuntimeStorage(self.entry, rows)

    def forward(self, step: Step, storage: KvStorage, first_row: int) -> NDArray[np.float32]:
        assert isinstance(storage, OnnxRuntimeStorage), "an engine takes the storage that it made"
        batch, length = step.input_ids.shape
        assert step.attention_mask.shape == (batch, 1, length, storage.view), "the mask was made for another view"
        if int(step.write_index.max()) + length > storage.view:
            raise CapacityError(f"{length} new tokens at {step.write_index.tolist()} pass the cache view of {storage.view}")
        binding = self._binding(storage, first_row, batch)
        for name in self._inputs:
            binding.put(name, getattr(step, name))
        logits = binding.take("logits", self._buffer("logits", batch, step.logit_rows.shape[1], self.entry.vocab_size))
        if self._hidden_width:
            self._hidden = binding.take("hidden", self._buffer("hidden", batch, length, self._hidden_width))
        self._session.run_with_iobinding(binding.io)
        return logits

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        self._alone.put("features", features)
        logits = self._alone.take("logits", self._buffer("logits", *features.shape[:2], self.entry.predictions, self.entry.vocab_size))
        self._session.run_with_iobinding(self._alone.io)
        return logits

    def _binding(self, storage: OnnxRuntimeStorage, first_row: int, batch: int) -> Binding:
        known = storage.bindings.get((first_row, batch))
        if known is not None:
            return known
        binding = Binding(self._session)
        entry = self.entry
        shape = (batch, entry.num_kv_heads, storage.view, entry.head_dim)
        for layer in range(entry.num_layers):
            for half, kind in enumerate(("key", "value")):
                pointer = storage.tensor[2 * layer + half, first_row].ctypes.data
                name = f"{kind}.{entry.first_layer + layer}"
                binding.io.bind_input(f"past_{name}", "cpu", 0, np.float32, shape, pointer)
                binding.io.bind_output(name, "cpu", 0, np.float32, shape, pointer)
        storage.bindings[first_row, batch] = binding
        return binding

    def _buffer(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Memory for the output ``name``, the same for every pass that asks for no more."""
        size = prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.empty(size, np.float32)
        return buffer[:size].reshape(shape)
