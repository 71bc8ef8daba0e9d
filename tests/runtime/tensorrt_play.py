"""A TensorRT plan, played by a few lines of NumPy over the addresses that the engine bound."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import EngineEntry
from specbuild.runtime.engine import Step
from specbuild.runtime.engines.tensorrt_plan import Limits

HEADS, DIM, VOCAB = 2, 4, 24
VERIFY, PREFILL = Limits(1, batch=4, step=8, rows=8), Limits(0, batch=4, step=32, rows=8)


def entry(**changes: Any) -> EngineEntry:
    given: dict[str, Any] = {
        "role": "target", "file": "engines/target.engine", "backend": "tensorrt-rtx", "flavour": "tensorrt_rtx", "version": "1.7.1.116",
        "compute_capabilities": ("sm89", "sm120"), "precision": "float32", "kv_dtype": "float32", "vocab_size": VOCAB, "hidden_size": 8,
        "num_layers": 1, "num_kv_heads": HEADS, "head_dim": DIM, "sliding_window": None, "max_batch_size": 4, "max_seq_len": 120,
        "capacity": 128, "static_view": True, "max_step": 8, "max_prefill": 32,
    }  # fmt: skip
    return EngineEntry(**(given | changes))


def a_step(random: np.random.Generator, starts: list[int], length: int, rows: int) -> Step:
    batch, first = len(starts), np.array(starts)
    position = first[:, None] + np.arange(length)
    mask = np.arange(128) <= position[..., None]
    return Step(random.integers(0, VOCAB, (batch, length)), position, first, mask[:, None], np.tile(np.arange(rows), (batch, 1)))


def at(pointer: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """The array at an address."""
    kind = np.ctypeslib.as_ctypes_type(np.dtype(dtype))
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(kind)), shape)


def played_pass(inputs: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Writes the tokens into keys and the positions into values, in place; logits [B,R,V] depend on all that a row attends to."""
    keys, values = inputs["past_key.0"], inputs["past_value.0"]
    _, length = inputs["input_ids"].shape
    for row, start in enumerate(inputs["write_index"].tolist()):
        keys[row, :, start : start + length] = inputs["input_ids"][row][:, None]
        values[row, :, start : start + length] = inputs["position_ids"][row][:, None] + 1
    seen = np.einsum("bst,bt->bs", inputs["attention_mask"][:, 0].astype(np.float32), keys[:, 0, :, 0] * values[:, 1, :, 1])
    wanted = np.take_along_axis(seen, inputs["logit_rows"], axis=1)
    return (wanted[..., None] * np.arange(VOCAB)).astype(np.float32)


class FakeContext:
    """An execution context that plays its passes on whatever memory it is bound to."""

    def __init__(self, plan: FakePlan) -> None:
        self.plan = plan
        self.profile: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.pointers: dict[str, int] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return True

    def set_device_memory(self, pointer: int, size: int) -> None:
        assert size == 4096

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, pointer: int) -> bool:
        self.pointers[name] = pointer
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return self.plan.capturable

    def execute_async_v3(self, stream: int) -> bool:
        limits = next(each for each in self.plan.limits if each.profile == self.profile)
        (batch, step), rows = self.shapes["input_ids"], self.shapes["logit_rows"][1]
        assert limits.fits(batch, step, rows), "outside the profile"
        if self.plan.capturing is None:
            self.compute()
        else:
            self.plan.capturing.append(self.compute)
        return self.plan.works

    def compute(self) -> None:
        self.plan.passes += 1
        types = {"attention_mask": np.bool_, "past_key.0": np.float32, "past_value.0": np.float32}
        inputs = {name: at(self.pointers[name], shape, types.get(name, np.int64)) for name, shape in self.shapes.items()}
        assert all(self.pointers[name] == self.pointers[f"past_{name}"] for name in ("key.0", "value.0")), "outputs alias their pasts"
        logits = played_pass(inputs)
        at(self.pointers["logits"], logits.shape, np.float32)[:] = logits


class FakePlan:
    """Stands for ``tensorrt_plan.Plan``: its library, its engine and its contexts."""

    def __init__(self) -> None:
        self.limits = (VERIFY, PREFILL)
        self.capturing: list[Callable[[], None]] | None = None
        self.capturable, self.works, self.passes = True, True, 0
        self.contexts: list[FakeContext] = []
        self.trt = SimpleNamespace(
            ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user"),
            DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER="eager"),
        )
        self.engine = SimpleNamespace(
            device_memory_size_v2=4096,
            create_runtime_config=lambda: SimpleNamespace(set_execution_context_allocation_strategy=lambda strategy: None),
            create_execution_context=self.new_context,
        )

    def new_context(self, config: Any) -> FakeContext:
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]

    def quote(self) -> str:
        return "out of memory"
