"""Retrieval from a server's history: what is found, what it costs, who may see it, and when hybrid takes it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain import plainly
from test_loop import assert_idle
from toy_engine import EOS, VOCABULARY, Toys, toys

from specbuild.errors import RequestError
from specbuild.runtime.draft import Draft
from specbuild.runtime.ground import Ground
from specbuild.runtime.proposers.base import Ask
from specbuild.runtime.proposers.hybrid import HybridProposer
from specbuild.runtime.proposers.ngram import NgramProposer
from specbuild.runtime.proposers.replay import ReplayProposer
from specbuild.runtime.proposers.suffix import History, SuffixProposer
from specbuild.runtime.proposers.text_index import LONGEST, RECENT, SIZES, Occurrence, TextIndex
from specbuild.runtime.request import Request, Running
from specbuild.runtime.sampling import SamplingParams

__all__ = ["toys"]
FEW = st.integers(0, 3)


def running(toys: Toys, prompt: Sequence[int], owner: int = 0, **options: Any) -> Running:
    params = SamplingParams(**{"seed": 7, "max_tokens": 40, **options})
    return Running(Request(owner, tuple(prompt), params, 7, "any", 4), "coupled", toys.generator().tokenizer, VOCABULARY, (EOS,))


def finish(proposer: SuffixProposer, sequence: Running, output: Sequence[int]) -> None:
    """A request that was answered with ``output``."""
    proposer.admit(sequence)
    for token in output:
        sequence.context.push(token)
    sequence.finish_reason = "stop"
    proposer.retire(sequence)


def drafted(proposer: SuffixProposer, sequence: Running, length: int = 4, **ask: Any) -> Draft:
    proposer.admit(sequence)
    draft = proposer.propose([Ask(sequence, length, **ask)])[0]
    proposer.retire(sequence)
    return draft


def scanned(texts: Sequence[Sequence[int]], end: Sequence[int]) -> set[tuple[int, int, int]]:
    """The definition: (text, index in it, length) of every place in ``texts`` before which the end of ``end`` stood."""
    found = set()
    for number, text in enumerate(texts):
        for index in range(1, len(text)):
            length = 0
            while length < min(index, len(end), LONGEST) and text[index - 1 - length] == end[-1 - length]:
                length += 1
            if length:
                found.add((number, index, length))
    return found


@given(
    texts=st.lists(st.lists(FEW, min_size=1, max_size=12), min_size=1, max_size=6),
    forgotten=st.integers(0, 6),
    end=st.lists(FEW, max_size=9),
)
def test_an_index_finds_the_latest_of_what_a_scan_finds(texts: list[list[int]], forgotten: int, end: list[int]) -> None:
    index = TextIndex()
    for text in texts:
        index.extend(text)
        index.close()
    forgotten = min(forgotten, len(texts))
    assert sum(index.forget_oldest() for _ in range(forgotten)) == sum(len(text) + 1 for text in texts[:forgotten])
    starts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    everything = {Occurrence(int(starts[number]) + at, length) for number, at, length in scanned(texts, end) if number >= forgotten}
    sizes = [size for size in SIZES if any(one.length >= size for one in everything)]
    expected = sorted((one for one in everything if sizes and one.length >= sizes[-1]), key=lambda one: -one.place)
    assert index.occurrences(end) == expected[:RECENT]
    if forgotten == len(texts):
        assert not len(index)
        assert not any(index._latest), "nothing is left of texts that left"
        assert not any(index._before)


def test_the_text_itself_is_enough(toys: Toys) -> None:
    """As prompt lookup, with as many tokens as its counts speak for, and none where it went on otherwise each time."""
    proposer = SuffixProposer(0)
    for owner, (prompt, expected) in enumerate(
        [
            ([1, 2, 3, 4, 6, 1, 2], (3, 4)),
            ([9, 8, 7, 6, 1, 2, 3, 4, 9, 8, 7, 6], (1, 2, 3, 4)),
            ([1, 2, 1, 2, 1, 2, 1], (2, 1, 2, 1)),
            ([4, 6], ()),
            ([4, 6, 4], (6,)),
            ([4, 6, 4, 7, 4, 8, 4, 9, 4], ()),
            ([1, 2, 3, 0, 1, 2, 4, 6, 1, 2, 3, 7, 1, 2], (3,)),
        ]
    ):
        assert drafted(proposer, running(toys, prompt, owner)).tokens == expected, prompt
    assert drafted(proposer, running(toys, [1, 2, 3, 1, 2]), 0).tokens == ()


def test_the_index_follows_the_text_and_what_is_only_drafted_leaves_no_trace(toys: Toys) -> None:
    proposer, sequence = SuffixProposer(0), running(toys, [1, 2, 3, 4, 9])
    proposer.admit(sequence)
    proposer.read(sequence, 3)
    assert proposer.propose([Ask(sequence, 2, after=(1, 2))])[0].tokens == (3, 4)
    assert proposer.propose([Ask(sequence, 2)])[0].tokens == ()
    for token in (1, 2):
        sequence.context.push(token)
    assert proposer.propose([Ask(sequence, 2)])[0].tokens == (3, 4)


def test_of_several_continuations_the_most_frequent_is_drafted_and_a_tree_has_the_others(toys: Toys) -> None:
    proposer = SuffixProposer(1000)
    for owner, last in enumerate([7, 8, 7, 7, 8, 7, 9]):
        finish(proposer, running(toys, [0], owner), [1, 2, 3, last, 6])
    assert drafted(proposer, running(toys, [1, 2, 3], 10), 2).tokens == (7, 6)
    tree = drafted(proposer, running(toys, [1, 2, 3], 11), 2, budget=5)
    assert {tuple(tree.tokens[node] for node in tree.path(leaf)) for leaf in range(len(tree))} == {(7,), (7, 6), (8,), (8, 6)}
    assert tree.tokens[0] == 7


def test_longer_matches_and_more_of_them_are_believed_further(toys: Toys) -> None:
    lengths = []
    for copies, match in ((1, 1), (1, 2), (1, 3), (2, 3), (1, 9)):
        proposer = SuffixProposer(1000)
        text = [*range(10, 10 + match), 1, 2, 3, 4, 6, 7, 8]
        for owner in range(copies):
            finish(proposer, running(toys, [0], owner), text)
        lengths.append(len(drafted(proposer, running(toys, text[:match], 9), 7)))
    assert lengths == [1, 2, 3, 7, 7]


def test_history_is_bounded_and_the_oldest_leave() -> None:
    history = History(100)
    for number in range(40):
        history.add("a" if number % 4 else None, [number] * 9)
        assert history.tokens <= 100
    assert history.tokens == 100
    kept = {tenant: index for tenant in (None, "a") if (index := history.of(tenant)) is not None}
    assert sum(len(index) for index in kept.values()) == 100
    assert [bool(kept["a"].occurrences([number])) for number in (29, 30, 31, 39)] == [False, True, True, True]
    for number in range(11):
        history.add("b", [number] * 9)
    assert history.of("a") is history.of(None) is None, "a tenant whose texts have left has no index"
    history.add("b", [1] * 100)
    assert history.tokens == 100, "a text above the limit is not kept"


def test_memory_is_given_back() -> None:
    """Ten times what is kept goes through; at no time is there more than twice the memory of one filling."""
    random = np.random.default_rng(0)
    texts = random.integers(0, 50_000, (200, 200)).tolist()
    tracemalloc.start()
    try:
        history = History(4000)
        for text in texts[:20]:
            history.add(None, text)
        filled = tracemalloc.get_traced_memory()[0]
        for text in texts:
            history.add(None, text)
        assert tracemalloc.get_traced_memory()[0] < 2 * filled
        del history
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < filled / 20
    finally:
        tracemalloc.stop()


SECRET = [20, 21, 22, 23, 19, 18, 17, 16]


@pytest.mark.parametrize(
    ("writer", "reader", "seen"),
    [
        ({}, {}, True),
        ({"tenant": "a"}, {"tenant": "a"}, True),
        ({"tenant": "a"}, {"tenant": "b"}, False),
        ({"tenant": "a"}, {}, False),
        ({}, {"tenant": "a"}, False),
        ({"share_history": False}, {}, False),
        ({}, {"share_history": False}, False),
        ({"tenant": "a", "share_history": False}, {"tenant": "a"}, False),
    ],
    ids=str,
)
def test_texts_of_others_are_seen_only_by_those_who_share_them(
    toys: Toys, writer: dict[str, Any], reader: dict[str, Any], seen: bool
) -> None:
    proposer = SuffixProposer(1000)
    finish(proposer, running(toys, [0], 0, **writer), SECRET)
    draft = drafted(proposer, running(toys, SECRET[:4], 1, **reader), 4, budget=16)
    assert draft.tokens == (tuple(SECRET[4:]) if seen else ())


def test_only_outputs_that_came_to_their_end_are_shared(toys: Toys) -> None:
    """Neither prompts nor what a client left half-way."""
    proposer = SuffixProposer(1000)
    finish(proposer, running(toys, SECRET, 0), [1])
    cancelled = running(toys, [0], 1)
    proposer.admit(cancelled)
    for token in SECRET:
        cancelled.context.push(token)
    proposer.retire(cancelled)
    assert drafted(proposer, running(toys, SECRET[:4], 2)).tokens == ()
    assert not proposer._own


@pytest.mark.parametrize("wrong", [{"share_history": 1}, {"share_history": None}, {"tenant": 3}])
def test_wrong_fields_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(wrong))} is"):
        SamplingParams(**wrong)


def test_a_text_asked_for_again_is_drafted_from_the_first_answer(toys: Toys) -> None:
    """Speculation is really on: the second takes a fraction of the target's passes, unless it may not look."""
    generator = toys.generator()
    params = {"seed": 3, "max_tokens": 40, "ignore_eos": True, "speculation": "suffix", "draft_len": 7}
    first, again, private = (
        generator.generate([[1, 2, 3]], SamplingParams(**params, share_history=share))[0] for share in (True, True, False)
    )
    assert first.token_ids == again.token_ids == private.token_ids
    assert first.token_ids == plainly(toys.target, generator, [1, 2, 3], SamplingParams(**params)).tokens
    assert again.stats.num_spec_steps < 0.4 * first.stats.num_spec_steps
    assert private.stats.num_spec_steps == first.stats.num_spec_steps
    assert_idle(generator)


@pytest.mark.parametrize("retrieval", ["ngram", "suffix"])
@pytest.mark.parametrize(("prompt", "match"), [([9, 8, 7], 0), ([9, 8, 7, 9], 1), ([1, 9, 8, 7, 1, 9], 2), ([1, 2, 9, 8, 7, 1, 2, 9], 3)])
@pytest.mark.parametrize("min_match", [1, 2, 3])
def test_hybrid_retrieves_exactly_where_the_match_is_long_enough(
    toys: Toys, retrieval: str, prompt: list[int], match: int, min_match: int
) -> None:
    """Two sequences a round: one beside another that never matches."""
    found = SuffixProposer(0) if retrieval == "suffix" else NgramProposer(1, 3)
    hybrid = HybridProposer(found, ReplayProposer({0: [23, 23], 1: [22, 22]}), min_match)
    sequences = [running(toys, prompt, 0), running(toys, [4, 3], 1)]
    for sequence in sequences:
        hybrid.admit(sequence)
        hybrid.read(sequence, len(sequence.tokens) - 1)
    ask = Ask(sequences[0], 2)
    assert found.match(ask) == match
    assert found.ground(ask) == (Ground(copied=True, match=match) if match else None)
    assert hybrid.ground(ask) == (Ground(copied=True, match=match) if match >= min_match else Ground())
    drafts = hybrid.propose([ask, Ask(sequences[1], 2)])
    assert drafts[0].tokens[:1] == ((8,) if match >= min_match else (23,))
    assert drafts[1].tokens == (22, 22)
    assert hybrid.propose([]) == []
    for sequence in sequences:
        hybrid.retire(sequence)
    assert not found.__dict__.get("_own")
    assert not found.__dict__.get("_indexes")


def test_a_match_that_went_on_otherwise_is_none(toys: Toys) -> None:
    """Prompt lookup drafts nothing there, and so hybrid asks the model."""
    sequence = running(toys, [5, 6, 5, 7, 5])
    lookup = NgramProposer(1, 3)
    hybrid = HybridProposer(lookup, ReplayProposer({0: [23]}), 1)
    hybrid.admit(sequence)
    assert lookup.match(Ask(sequence, 1)) == 0
    assert hybrid.propose([Ask(sequence, 1)])[0].tokens == (23,)
