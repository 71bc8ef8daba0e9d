"""TensorRT plans on a GPU: one copy in, one pass, one copy out, and the pass of a verify shape replayed as a CUDA graph.

Everything runs on one stream of its own. An optimisation profile has an execution context and staging memory, a captured
shape a context more: a graph is only valid while its context keeps the shape. All contexts share one scratch memory,
because no two passes are ever under way at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import EngineEntry
from specbuild.errors import BundleError, RequestError, UnsupportedError

from ..engine import KvStorage, Step
from .tensorrt_plan import Limits, Plan
from .tensorrt_staging import Staging
from .torch_storage import TorchStorage, check_bounds

MAX_GRAPHS = 64
"""Captured shapes a storage: each holds a context. Further shapes run uncaptured."""


class TensorRTEngine:
    """See ``runtime.engine.Engine``."""

    def __init__(self, path: Path, entry: EngineEntry, *, threads: int | None = None, device: str = "cuda:0") -> None:
        """Load ``path`` on ``device``. ``threads`` sets how many CPU threads compute: here none does, whatever it is.

        Raises:
            EnvironmentLacksError: no GPU, no library, or another version or GPU than the plan was compiled for.
            BundleError: the plan is missing or corrupt, or copies its cache instead of updating it in place.
        """
        self.entry = entry
        self._plan = Plan(path, entry, device)
        import torch

        self._device = device
        with torch.cuda.device(device):
            self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._scratch = torch.empty(max(self._plan.engine.device_memory_size_v2, 1), dtype=torch.uint8, device=self._device)
            self._staging = [Staging(entry, limits, self._device) for limits in self._plan.limits]
            self._captures = True
            self._contexts = [self._new_context(limits, captured=False) for limits in self._plan.limits]

    def new_storage(self, rows: int) -> TorchStorage:
        return TorchStorage(self.entry, rows, self._device, self._stream)

    def forward(self, step: Step, storage: KvStorage, first_row: int) -> NDArray[np.float32]:
        assert isinstance(storage, TorchStorage), "an engine takes the storage that it made"
        import torch

        (batch, length), rows = step.input_ids.shape, step.logit_rows.shape[1]
        assert first_row + batch <= storage.rows, "the pass reaches past the storage's rows"
        check_bounds(step.write_index, length, storage.view)
        lane = pick(self._plan.limits, batch, length, rows)
        staging, key = self._staging[lane], (first_row, batch, length, rows)
        with torch.cuda.stream(self._stream):
            staging.put(step)
            if key in storage.graphs:
                storage.graphs[key][0].replay()
                return staging.take(self._stream)
            # The first lane is the one with the shortest steps: its shapes come back every round and are captured.
            capture = self._captures and lane == 0 and len(storage.graphs) < MAX_GRAPHS
            context = self._new_context(self._plan.limits[lane], captured=True) if capture else self._contexts[lane]
            self._bind(context, staging, storage, key)
            self._run(context)
            logits = staging.take(self._stream)
            if capture and self.entry.flavour == "tensorrt_rtx":
                capture = self._captures = context.is_stream_capturable(self._stream.cuda_stream)
            if capture:
                storage.graphs[key] = self._capture(context), context
            return logits

    @property
    def hidden(self) -> None:
        """Plans that give out hidden states are refused when they are loaded."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        raise UnsupportedError(f"the {self.entry.role} plan is not run yet: TensorRT runs decoders; build with backend onnxruntime")

    def _new_context(self, limits: Limits, *, captured: bool) -> Any:
        """An execution context under a profile, with the shared scratch memory."""
        trt, engine = self._plan.trt, self._plan.engine
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        if captured and self.entry.flavour == "tensorrt_rtx":
            # RTX finishes kernels on this machine, by default behind the running passes: a graph would keep the fallback.
            config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
        context = engine.create_execution_context(config)
        self._must(context is not None, "create an execution context")
        self._must(context.set_optimization_profile_async(limits.profile, self._stream.cuda_stream), f"select profile {limits.profile}")
        context.set_device_memory(self._scratch.data_ptr(), self._scratch.numel())
        return context

    def _bind(self, context: Any, staging: Staging, storage: TorchStorage, key: tuple[int, int, int, int]) -> None:
        """Point every input and output of ``context`` at its memory; each cache output has its input's address."""
        first_row, batch, _, _ = key
        for name, shape, pointer in staging.inputs():
            self._must(context.set_input_shape(name, shape) and context.set_tensor_address(name, pointer), f"bind {name!r} as {shape}")
        shape = (batch, self.entry.num_kv_heads, storage.view, self.entry.head_dim)
        for layer in range(self.entry.num_layers):
            for half, kind in enumerate(("key", "value")):
                pointer = storage.tensor[2 * layer + half, first_row].data_ptr()
                past, present = f"past_{kind}.{layer}", f"{kind}.{layer}"
                self._must(context.set_input_shape(past, shape) and context.set_tensor_address(past, pointer), f"bind {past!r} as {shape}")
                self._must(context.set_tensor_address(present, pointer), f"bind {present!r}")
        self._must(context.set_tensor_address("logits", staging.logits_pointer), "bind 'logits'")

    def _run(self, context: Any) -> None:
        self._must(context.execute_async_v3(self._stream.cuda_stream), "run the pass")

    def _capture(self, context: Any) -> Any:
        """The pass that ``context`` has just run, as a CUDA graph. Capturing runs nothing: the cache is left as it is."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._run(context)
        return graph

    def _must(self, done: bool, what: str) -> None:
        if not done:
            raise BundleError(f"{self.entry.file}: {self.entry.flavour} cannot {what} ({self._plan.quote()})")


def pick(limits: tuple[Limits, ...], batch: int, step: int, rows: int) -> int:
    """Index of the first of the profiles, sorted by their longest step, that takes the shape.

    Raises:
        RequestError: none does.
    """
    for index, each in enumerate(limits):
        if each.fits(batch, step, rows):
            return index
    most = limits[-1]
    raise RequestError(
        f"a pass of {batch} × {step} tokens with {rows} rows of logits each: the plan takes {most.batch} × {most.step} with {most.rows}; "
        "build with a larger target.max_batch_size, tensorrt.max_prefill_len or speculation.max_draft_len"
    )
