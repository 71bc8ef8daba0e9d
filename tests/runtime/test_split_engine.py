"""A real tiny target cut in two: bit for bit the whole one, whatever its lower part has read ahead."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import pytest
from cut_target import CUT, Bundles, Floats, model

from specbuild.runtime.engines.split import SplitEngine
from specbuild.runtime.model import CachedModel, Feed


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("exit"))


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_the_two_parts_are_the_whole_bit_for_bit(bundles: Bundles, precision: str, cut: int) -> None:
    """Logits, and the hidden states of heads: of ragged rows, a chain, a tree whose branch stays, and what follows it."""
    found: list[list[Floats]] = []
    for bundle in (bundles(precision), bundles(precision, cut)):
        target, seen = model(bundle, 3), list[Floats]()
        for row in range(3):
            target.cache.reserve(row)
            hidden = target.prefill(row, range(5 + 20 * row, 10 + 40 * row))
            assert hidden is not None
            seen.append(hidden)
        feeds: Mapping[Hashable, Feed] = {
            0: Feed((3, 4, 5), wanted=(0, 1, 2)),
            2: Feed((9, 8, 7, 6), parents=(-1, 0, 0, 2), wanted=(0, 1, 2, 3)),
        }
        for feed in (feeds, {0: Feed((1,), wanted=(0,)), 1: Feed((2,), wanted=(0,)), 2: Feed((3,), wanted=(0,))}):
            seen += [rows.copy() for rows in target.feed(feed).values()]
            seen += [target.hidden(owner)[: len(each.tokens)].copy() for owner, each in feed.items()]
            for owner, each in feed.items():
                target.cache.commit(owner, np.array([0, 2, 3]) if each.parents else np.arange(len(each.tokens)))
        found.append(seen)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def begun(opened: CachedModel, owner: Hashable, text: Sequence[int]) -> CachedModel:
    opened.begin(owner, text)
    opened.prefill(owner, text)
    opened.start(owner, text)
    return opened


def some(random: np.random.Generator, owners: Iterable[Hashable], share: float) -> list[Hashable]:
    return [owner for owner in owners if random.random() < share]


def drafted(
    random: np.random.Generator, lower: CachedModel, group: Sequence[Hashable], texts: Mapping[Hashable, list[int]]
) -> dict[Hashable, list[int]]:
    """Tokens after the last of each text in ``group``, that one first; the lower part reads all but the last, in passes that some miss."""
    lengths, tokens = {owner: lower.length(owner) for owner in group}, {owner: texts[owner][-1:] for owner in group}
    view = max(lower.cache.lengths.tolist(), default=0) + lower.engine.entry.max_step
    for _ in range(random.integers(1, 4)):
        going = some(random, group, 0.8)
        if going:
            lower.feed({owner: Feed((tokens[owner][-1],)) for owner in going}, view=view)
        for owner in going:
            lower.cache.commit(owner, np.arange(1))
            tokens[owner].append(int(random.integers(256)))
    for owner, length in lengths.items():
        lower.cache.truncate(owner, length)
    return tokens


@pytest.mark.parametrize("precision", ["float32", "int4"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_was_read_ahead_the_logits_are_those_of_the_text(bundles: Bundles, precision: str, seed: int) -> None:
    """Rows are drafted for or not, drafts are followed, in part, in a tree or not at all, rows are given back and taken again."""
    random = np.random.default_rng(seed)
    alone, cut = model(bundles(precision), 1), model(bundles(precision, CUT), 4)
    assert isinstance(cut.engine, SplitEngine)
    lower, texts, checked = cut.sharing(cut.engine.lower), dict[Hashable, list[int]](), 0
    for number in range(60):
        if len(texts) < 4:
            texts[number] = random.integers(0, 256, random.integers(1, 50)).tolist()
            begun(cut, number, texts[number][:-1])
        drafts = {owner: text[-1:] for owner, text in texts.items()}
        for _ in range(random.integers(0, 3)):  # groups of sequences draft one after the other
            drafts |= drafted(random, lower, some(random, texts, 0.7), texts)
        feeds: dict[Hashable, Feed] = {}
        for owner, draft in drafts.items():
            tokens = [*draft[: random.integers(1, len(draft) + 1)], *random.integers(0, 256, random.integers(0, 3)).tolist()]
            parents = tuple(max(-1, place - 1 - int(random.random() < 0.1)) for place in range(len(tokens)))
            feeds[owner] = Feed(tuple(tokens), parents, wanted=tuple(range(len(tokens))))
        for owner, rows in cut.feed(feeds).items():
            alone.cache.reserve("text")
            alone.prefill("text", texts[owner][:-1])
            np.testing.assert_array_equal(rows, alone.feed({"text": feeds[owner]})["text"])
            alone.release("text")
            checked += 1
        for owner, feed in feeds.items():
            kept = len(feed.tokens) if feed.parents == tuple(range(-1, len(feed.tokens) - 1)) else 1
            cut.cache.commit(owner, np.arange(kept))
            texts[owner] += [*feed.tokens[1:kept], int(random.integers(256))]
        for owner in [owner for owner, text in texts.items() if len(text) > 140 or random.random() < 0.1]:
            cut.release(owner)
            del texts[owner]
    assert checked > 100


@pytest.mark.parametrize("text", [(65, 66, 67), (70, 71, 72)])
@pytest.mark.parametrize("view", [0, 128])
def test_what_was_read_ahead_of_another_text_or_view_is_forgotten(bundles: Bundles, text: tuple[int, ...], view: int) -> None:
    """The same tokens at the same place mean something else behind another text; a view that changes keeps valid positions alone."""
    cut = begun(model(bundles("int8", CUT)), "first", (65, 66, 67))
    assert isinstance(cut.engine, SplitEngine)
    cut.sharing(cut.engine.lower).feed({"first": Feed((7, 8, 9))})
    if text != (65, 66, 67):
        cut.release("first")
        begun(cut, "second", text)
    feed = Feed((7, 8, 9, 5), wanted=(0, 1, 2, 3))
    (found,) = cut.feed({cut.owners[0]: feed}, view=view).values()
    np.testing.assert_array_equal(found, begun(model(bundles("int8")), "alone", text).feed({"alone": feed})["alone"])
