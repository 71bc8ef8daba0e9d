"""The cached model: however tokens are fed, their logits are those of the whole text."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import MAX_STEP, VOCABULARY, ToyEngine, ToyModel, invariant, toy_entry

from specbuild.errors import CapacityError
from specbuild.runtime.model import CachedModel, Feed

MODEL = ToyModel()


def cached(rows: int = 3, **changes: object) -> CachedModel:
    return CachedModel(ToyEngine(MODEL, toy_entry("target", MODEL, **changes)), rows)


def passes(model: CachedModel) -> list[tuple[int, ...]]:
    """Shapes (batch, new tokens, view) of the passes so far."""
    assert isinstance(model.engine, ToyEngine)
    return [(*step.input_ids.shape, step.attention_mask.shape[-1]) for step in model.engine.steps]


@settings(max_examples=80, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=30), min_size=1, max_size=3),
    window=st.sampled_from([None, 1, 4, 50]),
    data=st.data(),
)
def test_any_way_of_feeding_gives_the_logits_of_the_whole_text(texts: list[list[int]], window: int | None, data: st.DataObject) -> None:
    """Ragged rows: a prefix is prefilled, the rest comes in feeds of any size, now and then with tokens that are then rejected."""
    model = cached(len(texts), sliding_window=window)
    for owner, text in enumerate(texts):
        model.cache.reserve(owner)
        model.prefill(owner, text[: data.draw(st.integers(0, len(text) - 1))])
    while True:
        feeds: dict[Hashable, Feed] = {}
        kept: dict[Hashable, int] = {}
        for owner, text in enumerate(texts):
            start = model.cache.length(owner)
            right = text[start : start + data.draw(st.integers(1, 4))]
            if not right or (data.draw(st.booleans()) and owner):
                continue
            wrong = data.draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=4))
            feeds[owner], kept[owner] = Feed((*right, *wrong), wanted=tuple(range(len(right)))), len(right)
        if not feeds:
            break
        for owner, logits in model.feed(feeds).items():
            start, text = model.cache.length(owner), texts[int(str(owner))]
            for index, row in enumerate(logits):
                np.testing.assert_array_equal(row, MODEL.after(text[: start + index + 1], window))
        for owner, count in kept.items():
            model.cache.commit(owner, np.arange(count))
            model.cache.check()


def test_rows_come_in_multiples_where_bits_depend_on_that() -> None:
    """One sequence or three have an even number of new tokens and of wanted rows in every pass, two have any; the logits are the same."""
    text = list(range(9))
    for rows, prompt_pass, step_pass in ((1, (1, 6), (1, 2)), (2, (1, 6), (2, 1)), (3, (1, 6), (3, 2))):
        model = cached(rows, row_multiple=2)
        for owner in range(rows):
            model.cache.reserve(owner)
            model.prefill(owner, text[:5])
        logits = model.feed({owner: Feed((text[5],), wanted=(0,)) for owner in range(rows)})
        assert [shape[:2] for shape in passes(model)] == [prompt_pass] * rows + [step_pass]
        assert isinstance(model.engine, ToyEngine)
        assert all(step.logit_rows.size % 2 == 0 for step in model.engine.steps)
        for owner in range(rows):
            assert logits[owner].shape == (1, MODEL.vocab_size)
            np.testing.assert_array_equal(logits[owner][0], MODEL.after(text[:6]))
        model.cache.commit(0, np.arange(1))
        assert model.length(0) == 6, "padding is never valid"


@settings(max_examples=80, deadline=None)
@given(data=st.data(), window=st.sampled_from([None, 2, 5]), prefix=st.lists(st.integers(0, VOCABULARY - 1), max_size=12))
def test_a_trees_node_sees_its_own_path(data: st.DataObject, window: int | None, prefix: list[int]) -> None:
    """Fed at once or in two passes. Then a branch is kept, and what follows it sees that branch alone."""
    count = data.draw(st.integers(1, MAX_STEP))
    first = data.draw(st.integers(1, count))
    parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(count))
    tokens = tuple(data.draw(st.integers(0, VOCABULARY - 1)) for _ in range(count))
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    model = cached(sliding_window=window)
    for owner in ("other", "tree"):
        model.cache.reserve(owner)
        model.prefill(owner, prefix)
    logits = list(model.feed({"tree": Feed(tokens[:first], parents[:first], tuple(range(first))), "other": Feed((1,))})["tree"].copy())
    model.cache.commit("tree", np.arange(first))
    if first < count:
        logits += list(model.feed({"tree": Feed(tokens[first:], parents, tuple(range(count - first)))})["tree"])
    for path, row in zip(paths, logits, strict=True):
        np.testing.assert_array_equal(row, MODEL.after(prefix + [tokens[node] for node in path], window))
    path = data.draw(st.sampled_from(paths))
    model.cache.truncate("tree", len(prefix))
    model.cache.commit("tree", np.array(path))
    text = prefix + [tokens[node] for node in path]
    np.testing.assert_array_equal(model.feed({"tree": Feed((7,), wanted=(0,))})["tree"][0], MODEL.after([*text, 7], window))


def test_prefill_goes_in_pieces_over_its_own_row() -> None:
    model = cached()
    for owner in ("long", "new"):
        model.cache.reserve(owner)
    model.prefill("long", [1] * 47)
    assert [shape[:2] for shape in passes(model)] == [(1, 10)] * 4 + [(1, 7)]
    model.prefill("new", [2] * 25)  # a piece of 10 fits its row, though not behind the other's 47
    assert model.cache.lengths.tolist() == [47, 25]
    model.prefill("new", [])
    assert len(passes(model)) == 8


def test_a_row_past_the_capacity_is_refused_before_the_pass() -> None:
    model = cached(capacity=48)
    model.cache.reserve("a")
    model.prefill("a", [1] * 45)
    before = passes(model)
    with pytest.raises(CapacityError):
        model.feed({"a": Feed((1, 2, 3, 4))})
    assert passes(model) == before


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (invariant(), (1, 2)),
        (invariant(step_invariant=False), (1, MAX_STEP)),
        (None, (1, 2)),
    ],
)
def test_passes_are_padded_where_the_probe_asks_for_it(probe: object, expected: tuple[int, int]) -> None:
    model = cached(probe=probe)
    model.cache.reserve("a")
    model.feed({"a": Feed((1, 2), wanted=(1,))})
    assert passes(model)[-1][:2] == expected
    # A probe itself measures without padding.
    unpadded = CachedModel(model.engine, 1, padded=False)
    unpadded.cache.reserve("a")
    unpadded.feed({"a": Feed((1, 2), wanted=(1,))})
    assert passes(unpadded)[-1][:2] == (1, 2)


def test_the_view_is_the_longest_where_the_probe_asks_for_it() -> None:
    for probe, views in ((invariant(view_invariant=False), {55}), (invariant(), {5, 6})):
        model = cached(probe=probe)
        model.cache.reserve("a")
        model.prefill("a", [1] * 5)
        model.feed({"a": Feed((1,))})
        assert {shape[2] for shape in passes(model)} == views


def test_only_wanted_rows_are_computed() -> None:
    model = cached()
    for owner in "ab":
        model.cache.reserve(owner)
    logits = model.feed({"a": Feed((1, 2, 3), wanted=(2,)), "b": Feed((4,), wanted=(0,))})
    assert {owner: rows.shape for owner, rows in logits.items()} == dict.fromkeys("ab", (1, MODEL.vocab_size))
    np.testing.assert_array_equal(logits["a"][0], MODEL.after([1, 2, 3]))


def test_a_prompt_takes_over_what_one_that_still_decodes_has_read() -> None:
    model = CachedModel(ToyEngine(MODEL, toy_entry("target", MODEL)), 3, remember=48)
    text = [token % VOCABULARY for token in range(40)]
    alike = [*text[:36], 5, 6]
    for owner, prompt, known in (("first", text, 0), ("second", alike, 36)):
        assert model.begin(owner, prompt) == known
        model.prefill(owner, prompt[known:])
        model.start(owner, prompt)
    read = [step.input_ids.shape[1] for step in model.engine.steps]  # type: ignore[attr-defined]  # a toy
    assert sum(read) == len(text) + 2
    logits = model.feed({owner: Feed((1,), wanted=(0,)) for owner in ("first", "second")})
    np.testing.assert_array_equal(logits["first"][0], MODEL.after([*text, 1]))
    np.testing.assert_array_equal(logits["second"][0], MODEL.after([*alike, 1]))
    model.release("first")
    model.check()
    assert model.begin("third", text) == 36, "of the second, which is all there is"
    model.release("third")
    model.release("second", alike)
    assert model.begin("fourth", [*alike, 1, 2]) == len(alike), "remembered when it left"
    model.check()


def test_a_prompt_that_is_being_read_is_in_nobodys_pass() -> None:
    """Neither as a row of it nor by its length."""
    model = CachedModel(ToyEngine(MODEL, toy_entry("target", MODEL)), 3)
    model.begin("short", [1, 2])
    model.prefill("short", [1, 2])
    model.start("short", [1, 2])
    model.begin("long", [3] * 40)
    model.prefill("long", [3] * 30)
    model.feed({"short": Feed((4,), wanted=(0,))})
    batch, width, view = passes(model)[-1]
    assert (batch, width) == (1, 1)
    assert view < 30
    with pytest.raises(CapacityError, match="all 1 cache rows are held"):
        model.begin("third", [1])
