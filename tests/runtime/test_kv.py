"""The cache conserves rows, keeps what is valid through every move, and refuses what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbuild.bundle import EngineEntry
from specbuild.errors import CapacityError
from specbuild.runtime.engines.onnxruntime import OnnxRuntimeStorage
from specbuild.runtime.kv import KvCache

CAPACITY = 256


def entry(**changes: object) -> EngineEntry:
    fields: dict[str, object] = {
        "role": "target",
        "file": "engines/target/model.onnx",
        "backend": "onnxruntime",
        "flavour": "onnxruntime",
        "version": "1",
        "precision": "float32",
        "kv_dtype": "float32",
        "vocab_size": 8,
        "hidden_size": 4,
        "num_layers": 2,
        "num_kv_heads": 1,
        "head_dim": 2,
        "sliding_window": None,
        "max_batch_size": 3,
        "max_seq_len": CAPACITY - 8,
        "capacity": CAPACITY,
        "static_view": False,
        "max_step": 8,
        "max_prefill": 64,
    }
    return EngineEntry.model_validate(fields | changes)


class Written:
    """A cache whose positions hold the number of the write that made them, beside plain lists of what must be there."""

    def __init__(self) -> None:
        self.storage = OnnxRuntimeStorage(entry(), 3)
        self.cache = KvCache(self.storage, entry())
        self.expected: dict[int, list[int]] = {}
        self.clock = 0

    def write(self, count: int) -> dict[int, list[int]]:
        """A pass of ``count`` new tokens on every held row."""
        self.cache.make_room(count)
        written: dict[int, list[int]] = {}
        for row, owner in enumerate(self.cache.owners):
            start = int(self.cache.lengths[row])
            stamps = range(self.clock, self.clock + count)
            self.clock += count
            self.storage.tensor[:, row, :, start : start + count] = np.array(stamps)[:, None]
            written[owner] = list(stamps)
        return written

    def check(self) -> None:
        self.cache.check()
        assert set(self.cache.owners) == set(self.expected)
        for owner, stamps in self.expected.items():
            row = self.cache.row(owner)
            assert self.cache.length(owner) == len(stamps)
            held = self.storage.tensor[:, row, :, : len(stamps)]
            assert (held == np.array(stamps).reshape(1, 1, -1, 1)).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_valid_survives_any_order_of_reserve_commit_truncate_and_release(data: st.DataObject) -> None:
    state, next_owner = Written(), 0
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["reserve", "pass", "truncate", "release"]))
        owners = state.cache.owners
        if action == "reserve" and state.cache.free:
            state.cache.reserve(next_owner)
            state.expected[next_owner] = []
            next_owner += 1
        elif action == "pass" and owners and int(state.cache.lengths.max()) < CAPACITY - 48:
            count = data.draw(st.integers(1, 40))
            for owner, stamps in state.write(count).items():
                path = sorted(data.draw(st.sets(st.integers(0, count - 1))))
                state.cache.commit(owner, np.array(path, np.int64))
                state.expected[owner] += [stamps[node] for node in path]
        elif action == "truncate" and owners:
            owner = data.draw(st.sampled_from(owners))
            length = data.draw(st.integers(0, len(state.expected[owner])))
            state.cache.truncate(owner, length)
            del state.expected[owner][length:]
        elif action == "release" and owners:
            owner = data.draw(st.sampled_from(owners))
            state.cache.release(owner)
            del state.expected[owner]
        state.check()


def test_a_full_cache_says_so() -> None:
    cache = Written().cache
    for owner in range(3):
        cache.reserve(owner)
    with pytest.raises(CapacityError, match="all 3 cache rows are held"):
        cache.reserve(3)


def test_a_pass_beyond_the_capacity_is_refused_and_harms_nothing() -> None:
    state = Written()
    state.cache.reserve(0)
    state.expected[0] = state.write(200)[0]
    state.cache.commit(0, np.arange(200))
    with pytest.raises(CapacityError, match=r"needs 257 cache positions, the engine was built for 256"):
        state.cache.make_room(57)
    state.check()


def test_the_view_shrinks_after_a_long_sequence_has_left() -> None:
    state = Written()
    state.cache.reserve(0)
    state.cache.reserve(1)
    state.expected = state.write(200)
    state.cache.commit(0, np.arange(200))
    state.cache.commit(1, np.arange(10))
    state.expected[1] = state.expected[1][:10]
    state.cache.release(0)
    del state.expected[0]
    assert state.cache.make_room(1) == 64
    state.check()


def test_the_check_can_fail() -> None:
    state = Written()
    state.cache.reserve(0)
    state.cache._owners.append(0)
    with pytest.raises(AssertionError, match="held twice"):
        state.cache.check()
