"""The TensorRT engine without a GPU: what it refuses, how it moves memory, and its passes over a plan that is played."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensorrt_names import missing_names, used_names

from specbuild.bundle import EngineEntry
from specbuild.errors import BundleError, CapacityError, EnvironmentLacksError, RequestError
from specbuild.runtime.engine import Step
from specbuild.runtime.engines import load, tensorrt, tensorrt_plan
from specbuild.runtime.engines.tensorrt import TensorRTEngine, pick
from specbuild.runtime.engines.tensorrt_plan import Limits, check_machine, require_gpu, require_library
from specbuild.runtime.engines.tensorrt_staging import ALIGNMENT, Staging, layout
from specbuild.runtime.engines.torch_storage import TorchStorage, check_bounds

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


# What it refuses.


def test_without_a_gpu_one_sentence_and_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentLacksError, match=r"need an NVIDIA GPU and torch .* sees none") as caught:
        load(tmp_path, entry(), threads=2)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EnvironmentLacksError, match="torch is not installed: pip install"):
        require_gpu("cuda:0")


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 9) if index == 1 else (12, 0))
    assert (require_gpu("cuda:0"), require_gpu("cuda:1")) == ("sm120", "sm89")
    with pytest.raises(EnvironmentLacksError, match="device cuda:2 was asked for and there are 2 GPUs"):
        require_gpu("cuda:2")


def test_a_library_that_is_not_installed() -> None:
    assert require_library("tensorrt_rtx").__version__
    with pytest.raises(EnvironmentLacksError, match=r"engines need tensorrt .*pip install 'tensorrt>=11'"):
        require_library("tensorrt")


def test_another_version_or_gpu_names_both_sides_and_the_command() -> None:
    check_machine(entry(), "1.7.1.116", "sm120")
    with pytest.raises(
        EnvironmentLacksError, match=r"compiled with tensorrt_rtx 1\.7\.1\.116, installed is 1\.8\.0.*engine build --force -c"
    ):
        check_machine(entry(), "1.8.0", "sm89")
    with pytest.raises(
        EnvironmentLacksError, match=r"compiled for sm89, sm120, .* GPU is sm86; .*--set tensorrt\.compute_capabilities=\[sm86\]"
    ):
        check_machine(entry(), "1.7.1.116", "sm86")


@pytest.mark.parametrize("content", [None, b"", b"no plan at all"])
def test_a_plan_that_is_missing_or_corrupt(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_plan, "require_gpu", lambda device: "sm89")
    path = tmp_path / "target.engine"
    if content is not None:
        path.write_bytes(content)
    version = require_library("tensorrt_rtx").__version__
    with pytest.raises(BundleError, match=r"target\.engine: .*build it anew with `specbuild engine build --force"):
        TensorRTEngine(path, entry(version=version))


def test_importing_it_loads_neither_torch_nor_tensorrt() -> None:
    heavy = {"torch", "tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"}
    code = f"import sys, specbuild.runtime.engines.tensorrt; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_every_name_of_the_api_exists() -> None:
    names = used_names(tensorrt, {"config": "IRuntimeConfig"}) | used_names(tensorrt_plan, {})
    wanted = {"IExecutionContext.execute_async_v3", "ICudaEngine.get_aliased_input_tensor", "Runtime.deserialize_cuda_engine"}
    assert wanted <= names
    assert missing_names(require_library("tensorrt_rtx"), names) == set()


# Pure decisions.


@given(st.lists(st.integers(-2, 40), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 32))
def test_bounds_are_refused_exactly_when_a_write_leaves_the_cache(starts: list[int], step: int, capacity: int) -> None:
    inside = all(0 <= start + offset < capacity for start in starts for offset in range(step))
    with contextlib.nullcontext() if inside else pytest.raises(CapacityError, match="pass the cache view"):
        check_bounds(np.array(starts), step, capacity)


def test_the_smallest_profile_that_fits_is_picked() -> None:
    limits = (VERIFY, PREFILL)
    assert [pick(limits, 4, 8, 8), pick(limits, 1, 9, 1), pick(limits, 1, 1, 1)] == [0, 1, 0]
    for shape in ((5, 1, 1), (1, 33, 1), (1, 8, 9)):
        with pytest.raises(RequestError, match="the plan takes 4 × 32 with 8"):
            pick(limits, *shape)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 300))
def test_packed_inputs_are_aligned_apart_and_fit_into_the_largest(batch: int, step: int, rows: int, view: int) -> None:
    fields = layout(batch, step, rows, view)
    assert [field.name for field in fields] == ["input_ids", "position_ids", "write_index", "attention_mask", "logit_rows"]
    assert all(field.start % ALIGNMENT == 0 for field in fields)
    assert all(before.end <= after.start for before, after in pairwise(fields))
    assert fields[-1].end <= layout(5, 9, 9, 300)[-1].end


# Memory, on the CPU.


def numbered_storage(rows: int = 3, dtype: str = "float32") -> tuple[TorchStorage, NDArray[np.float32]]:
    storage = TorchStorage(entry(capacity=16, kv_dtype=dtype), rows, "cpu")
    storage.tensor.copy_(torch.arange(storage.tensor.numel()).remainder(251).reshape(storage.tensor.shape))
    return storage, storage.tensor.float().numpy().copy()


def test_a_new_storage_is_zero_and_as_long_as_the_engine() -> None:
    storage = TorchStorage(entry(kv_dtype="bfloat16"), 3, "cpu")
    assert storage.tensor.dtype == torch.bfloat16
    assert storage.tensor.shape == (2, 3, HEADS, 128, DIM)
    assert not storage.tensor.any()
    assert (storage.rows, storage.view) == (3, 128)


def test_resizing_moves_nothing_and_refuses_more_than_the_capacity() -> None:
    storage, before = numbered_storage()
    pointer = storage.tensor.data_ptr()
    storage.resize(1, np.array([1, 2, 3]))
    storage.resize(16, np.array([1, 2, 3]))
    assert (storage.view, storage.tensor.data_ptr()) == (16, pointer)
    assert (storage.tensor.numpy() == before).all()
    with pytest.raises(CapacityError, match="needs 17 cache positions, the engine has 16"):
        storage.resize(17, np.array([1, 2, 3]))


def test_moving_a_row_copies_its_first_positions_and_nothing_else() -> None:
    storage, expected = numbered_storage()
    storage.move_row(2, 0, 5)
    expected[:, 0, :, :5] = expected[:, 2, :, :5]
    assert (storage.tensor.numpy() == expected).all()


@given(st.sets(st.integers(0, 15), min_size=1), st.data())
def test_moving_tokens_gathers_them_though_ranges_overlap(chosen: set[int], data: st.DataObject) -> None:
    sources = np.array(sorted(chosen))
    start = data.draw(st.integers(0, int(min(sources - np.arange(len(sources))))))
    storage, expected = numbered_storage()
    storage.move_tokens(1, sources, start)
    expected[:, 1, :, start : start + len(sources)] = expected[:, 1][:, :, sources].copy()
    assert (storage.tensor.numpy() == expected).all()


def a_step(random: np.random.Generator, starts: list[int], length: int, rows: int) -> Step:
    batch, first = len(starts), np.array(starts)
    position = first[:, None] + np.arange(length)
    mask = np.arange(128) <= position[..., None]
    return Step(random.integers(0, VOCAB, (batch, length)), position, first, mask[:, None], np.tile(np.arange(rows), (batch, 1)))


def at(pointer: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """The array at an address."""
    kind = np.ctypeslib.as_ctypes_type(np.dtype(dtype))
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(kind)), shape)


def test_staged_inputs_lie_where_they_are_said_to_be() -> None:
    staging, random = Staging(entry(), VERIFY, "cpu"), np.random.default_rng(0)
    for step in (a_step(random, [3, 0, 9], 5, 2), a_step(random, [1], 1, 1), a_step(random, [0, 1, 2, 3], 8, 8)):
        staging.put(step)
        for name, shape, pointer in staging.inputs():
            wanted = getattr(step, name)
            assert shape == wanted.shape
            assert (at(pointer, shape, wanted.dtype) == wanted).all()


# Whole passes: the plan is played by a few lines of NumPy over the addresses that the engine bound.


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
        assert limits.fits(*self.shapes["input_ids"], self.shapes["logit_rows"][1]), "outside the profile"
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


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> FakePlan:
    """A played plan, and torch's CUDA as far as the engine needs it: graphs record what contexts would have run."""
    plan = FakePlan()

    class Graph:
        def __init__(self) -> None:
            self.work: list[Callable[[], None]] = []

        def replay(self) -> None:
            for work in self.work:
                work()

    @contextlib.contextmanager
    def capture(graph: Graph, **options: Any) -> Iterator[None]:
        plan.capturing = graph.work
        yield
        plan.capturing = None

    monkeypatch.setattr(tensorrt, "Plan", lambda path, entry, device: plan)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(cuda_stream=0, synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return plan


def passes(steps: list[tuple[Step, int]]) -> list[NDArray[np.float32]]:
    """Logits of steps, each from a row on, through one engine and storage."""
    engine = TensorRTEngine(Path("unused"), entry(), device="cpu")
    storage = engine.new_storage(4)
    return [engine.forward(step, storage, row).copy() for step, row in steps]


def test_passes_reach_the_plan_eager_and_replayed(plan: FakePlan) -> None:
    random = np.random.default_rng(1)
    steps = [(a_step(random, [0], 20, 1), 1), (a_step(random, [0], 13, 2), 0)]
    for round_ in range(4):  # the same shapes again and again: from the second on they are replayed
        steps += [(a_step(random, [13 + round_, 20 + round_], 5, 5), 0), (a_step(random, [20 + round_], 1, 1), 1)]
    cache = {f"past_{kind}.0": np.zeros((4, HEADS, 128, DIM), np.float32) for kind in ("key", "value")}
    for (step, row), seen in zip(steps, passes(steps), strict=True):
        rows = slice(row, row + len(step.write_index))
        expected = played_pass(vars(step) | {name: array[rows] for name, array in cache.items()})
        assert expected.any()
        np.testing.assert_array_equal(seen, expected)
    assert plan.passes == len(steps), "capturing computes nothing"
    assert len(plan.contexts) == 2 + 2, "one a profile, one a captured shape"


def test_a_plan_that_cannot_be_captured_runs_uncaptured(plan: FakePlan) -> None:
    plan.capturable = False
    random = np.random.default_rng(2)
    passes([(a_step(random, [start], 4, 4), 0) for start in range(5)])
    assert len(plan.contexts) == 3, "found out once, with the first pass"
    assert plan.passes == 5


def test_graphs_are_limited(plan: FakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "MAX_GRAPHS", 2)
    random = np.random.default_rng(3)
    passes([(a_step(random, [0], length, 1), 0) for length in (1, 2, 3, 4, 1, 2)])
    assert len(plan.contexts) == 2 + 2


def test_a_pass_past_the_cache_never_reaches_the_plan(plan: FakePlan) -> None:
    with pytest.raises(CapacityError, match=r"5 new tokens at \[0, 124\] pass the cache view of 128"):
        passes([(a_step(np.random.default_rng(4), [0, 124], 5, 1), 0)])
    assert plan.passes == 0


def test_what_tensorrt_refuses_is_quoted(plan: FakePlan) -> None:
    plan.works = False
    with pytest.raises(BundleError, match=r"engines/target\.engine: tensorrt_rtx cannot run the pass \(out of memory\)"):
        passes([(a_step(np.random.default_rng(5), [0], 1, 1), 0)])
