"""Whole passes of the TensorRT engine over a plan that is played: what is bound, captured, replayed and refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensorrt_play import DIM, HEADS, FakePlan, a_step, entry, played_pass

from specbuild.errors import BundleError, CapacityError
from specbuild.runtime.engine import Step
from specbuild.runtime.engines import tensorrt
from specbuild.runtime.engines.tensorrt import TensorRTEngine


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
