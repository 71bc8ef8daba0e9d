"""Memory of the TensorRT engine, on the CPU: the cache and its moves, and the staging of inputs."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensorrt_play import DIM, HEADS, VERIFY, a_step, at, entry

from specbuild.errors import CapacityError
from specbuild.runtime.engines.tensorrt_staging import ALIGNMENT, Staging, layout
from specbuild.runtime.engines.torch_storage import TorchStorage, check_bounds


@given(st.lists(st.integers(-2, 40), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 32))
def test_bounds_are_refused_exactly_when_a_write_leaves_the_cache(starts: list[int], step: int, capacity: int) -> None:
    inside = all(0 <= start + offset < capacity for start in starts for offset in range(step))
    with contextlib.nullcontext() if inside else pytest.raises(CapacityError, match="pass the cache view"):
        check_bounds(np.array(starts), step, capacity)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 300))
def test_packed_inputs_are_aligned_apart_and_fit_into_the_largest(batch: int, step: int, rows: int, view: int) -> None:
    fields = layout(batch, step, rows, view)
    assert [field.name for field in fields] == ["input_ids", "position_ids", "write_index", "attention_mask", "logit_rows"]
    assert all(field.start % ALIGNMENT == 0 for field in fields)
    assert all(before.end <= after.start for before, after in pairwise(fields))
    assert fields[-1].end <= layout(5, 9, 9, 300)[-1].end


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
    storage.copy_row(storage, 2, 0, 5)
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


def test_staged_inputs_lie_where_they_are_said_to_be() -> None:
    staging, random = Staging(entry(), VERIFY, "cpu"), np.random.default_rng(0)
    for step in (a_step(random, [3, 0, 9], 5, 2), a_step(random, [1], 1, 1), a_step(random, [0, 1, 2, 3], 8, 8)):
        staging.put(step)
        for name, shape, pointer in staging.inputs():
            wanted = getattr(step, name)
            assert shape == wanted.shape
            assert (at(pointer, shape, wanted.dtype) == wanted).all()
