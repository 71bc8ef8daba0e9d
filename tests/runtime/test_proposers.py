"""Proposers: what they draft, and that a draft model's cache follows the text through every kind of round."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import EOS, MAX_STEP, VOCABULARY, ToyEngine, ToyModel, Toys, toy_entry, toys

from specbuild.errors import BundleError, RequestError
from specbuild.recipe import Method
from specbuild.runtime.acceptance import SeededRound
from specbuild.runtime.draft import Draft
from specbuild.runtime.ground import TORN, Ground
from specbuild.runtime.model import CachedModel
from specbuild.runtime.proposers import METHODS, Means, Proposers
from specbuild.runtime.proposers.base import Ask
from specbuild.runtime.proposers.draft_model import DraftModelProposer
from specbuild.runtime.proposers.ngram import NgramIndex, NgramProposer
from specbuild.runtime.proposers.replay import ReplayProposer
from specbuild.runtime.request import Request, Running
from specbuild.runtime.sampling import SamplingParams

__all__ = ["toys"]
FEW = st.integers(0, 3)
MODEL = ToyModel()


def running(toys: Toys, prompt: Sequence[int], owner: int = 0, rule: str = "coupled", **options: Any) -> Running:
    params = SamplingParams(**{"seed": 7, **options})
    return Running(Request(owner, tuple(prompt), params, 7, "any", 4), rule, toys.generator().tokenizer, VOCABULARY, (EOS,))


def lookup(tokens: list[int], shortest: int, longest: int, length: int) -> tuple[int, int]:
    """The definition: scan for the earlier occurrences of the longest suffix that has one; see whether the last two went on alike, and
    how far back the last one matches."""
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        ends = [end for end in range(size, len(tokens)) if tokens[end - size : end] == tokens[-size:]]
        if ends:
            end = ends[-1]
            matched = max(n for n in range(1, end + 1) if tokens[end - n : end] == tokens[-n:])
            torn = len({tokens[other] for other in ends[-2:]}) == 2 and matched == size
            return end, 0 if torn else max(2, min(matched, max(length, size + 1)))
    return 0, 0


@given(tokens=st.lists(FEW, min_size=1, max_size=40), sizes=st.tuples(st.integers(1, 3), st.integers(1, 4)), data=st.data())
def test_the_index_finds_what_a_scan_finds(tokens: list[int], sizes: tuple[int, int], data: st.DataObject) -> None:
    shortest, longest = min(sizes), max(sizes)
    index, known = NgramIndex(shortest, longest), 0
    while known < len(tokens):
        known = data.draw(st.integers(known + 1, len(tokens)))
        index.extend(tokens[:known])
        length = data.draw(st.integers(1, 9))
        match = index.match(tokens[:known], length)
        found = (0, 0) if match is None else (match.starts[0], match.vouched)
        assert found == lookup(tokens[:known], shortest, longest, length)


def test_lookup_copies_what_followed_as_far_as_it_matched_and_goes_round_in_loops(toys: Toys) -> None:
    proposer = NgramProposer(1, 3)
    cases = [
        ([1, 2, 3, 4, 1, 2], 3, (3, 4)),
        ([1, 2, 3, 4, 1, 2], 1, (3,)),
        ([5, 6, 7, 8, 9, 0, 5, 6, 7, 8], 7, (9, 0, 5, 6)),
        ([1, 2, 1, 2, 1], 7, (2, 1, 2)),
        ([4, 5, 6, 5], 7, (6, 5)),
        ([5, 6, 5, 7, 5], 7, ()),
        ([5, 6, 5, 7, 5, 7, 5], 7, (7, 5, 7)),
        ([1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3], 7, (5, 0, 1, 2)),
        ([1, 2, 3], 4, ()),
        ([1, 1], 0, ()),
        ([6], 4, ()),
    ]
    for owner, (prompt, length, expected) in enumerate(cases):
        sequence = running(toys, prompt, owner)
        proposer.admit(sequence)
        draft = proposer.propose([Ask(sequence, length)])[0]
        assert draft.tokens == expected
        assert draft.laws is None
        proposer.retire(sequence)
    with pytest.raises(KeyError):
        proposer.propose([Ask(sequence, 1)])


def test_where_lengths_are_chosen_copies_are_as_long_as_asked_for(toys: Toys) -> None:
    """What a match vouches for is then for what became of others to say; where its last two continuations differ it is told apart."""
    proposer, cases = NgramProposer(1, 3), [([1, 2, 3, 4, 1], (2, 3, 4, 1), Ground(True, 1)), ([5, 6, 5, 7, 5], (7, 5, 7, 5), TORN)]
    for owner, (prompt, expected, ground) in enumerate(cases):
        sequence = running(toys, prompt, owner)
        proposer.admit(sequence)
        ask = Ask(sequence, 4, least=(0.5,) * 3)
        assert (proposer.ground(ask), proposer.propose([ask])[0].tokens) == (ground, expected)


def test_lookup_sees_the_output_too(toys: Toys) -> None:
    proposer, sequence = NgramProposer(1, 3), running(toys, [1, 2])
    proposer.admit(sequence)
    proposer.read(sequence, len(sequence.tokens) - 1)
    proposer.start(sequence)
    assert proposer.propose([Ask(sequence, 2)])[0].tokens == ()
    for token in (3, 1, 2):
        sequence.context.push(token)
    assert proposer.propose([Ask(sequence, 2)])[0].tokens == (3, 1)


def test_replay_goes_on_where_the_output_stands(toys: Toys) -> None:
    proposer, sequence = ReplayProposer({0: [4, 5, 6, 7]}), running(toys, [1])
    assert proposer.propose([Ask(sequence, 2)])[0].tokens == (4, 5)
    sequence.context.push(9)
    assert proposer.propose([Ask(sequence, 9)])[0].tokens == (5, 6, 7)
    assert proposer.propose([Ask(running(toys, [1], owner=3), 2)])[0].tokens == ()


def expected_draft(sequence: Running, length: int, window: int | None = None) -> Draft:
    """What a draft model drafts, from the definition."""
    tokens, laws = [], []
    for depth in range(length):
        with sequence.context.after(tokens):
            laws.append(sequence.transforms.law(MODEL.after(sequence.tokens, window), sequence.context))
        tokens.append(sequence.rule.choose(laws[-1], SeededRound(7, sequence.context.position), depth))
    return Draft.chain(tokens, laws)


PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 2.0, "bad_words": [[3, 4], [5, 5]]}


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    rule=st.sampled_from(["coupled", "block", "token"]),
    window=st.sampled_from([None, 4]),
    options=st.sampled_from([{}, PENALTIES]),
)
def test_a_draft_model_drafts_from_the_whole_text_whatever_happened(
    toys: Toys, data: st.DataObject, rule: str, window: int | None, options: dict[str, Any]
) -> None:
    """Rounds that keep none, some or all of the draft, end in the very token that was drafted or pass by unasked, beside neighbours."""
    engine = ToyEngine(MODEL, toy_entry("draft", MODEL, sliding_window=window))
    proposer = DraftModelProposer(CachedModel(engine, 3))
    prompts = st.lists(st.integers(0, 23), min_size=1, max_size=20)
    sequences = [running(toys, data.draw(prompts), owner, rule, **options) for owner in range(3)]
    for sequence in sequences:
        proposer.admit(sequence)
        proposer.read(sequence, len(sequence.tokens) - 1)
        proposer.start(sequence)
    while sequences:
        asked = [sequence for sequence in sequences if data.draw(st.booleans())]
        asks = [Ask(sequence, min(data.draw(st.integers(0, 7)), 48 - len(sequence.tokens))) for sequence in asked]
        for ask, draft in zip(asks, proposer.propose(asks), strict=True):
            expected = expected_draft(ask.sequence, ask.draft_len, window)
            assert draft.tokens == expected.tokens
            assert (draft.laws is None) == (rule == "coupled")
            for node in range(len(draft) if draft.laws else 0):
                np.testing.assert_array_equal(draft.law(node).p, expected.law(node).p)
            kept = data.draw(st.integers(0, len(draft)))
            tail = draft.tokens[kept] if kept < len(draft) and data.draw(st.booleans()) else data.draw(st.integers(0, 23))
            for token in (*draft.tokens[:kept], tail):
                ask.sequence.context.push(token)
        for sequence in sequences:
            if sequence not in asked:
                sequence.context.push(data.draw(st.integers(0, 23)))
        proposer._model.cache.check()
        for sequence in [s for s in sequences if len(s.tokens) >= 40 or data.draw(st.integers(0, 5)) == 0]:
            proposer.retire(sequence)
            sequences.remove(sequence)
    assert proposer._model.cache.live == 0


def test_after_full_acceptance_the_draft_feeds_two_tokens_and_else_one(toys: Toys) -> None:
    """What the engine is really given: the text is never read again."""
    engine = ToyEngine(MODEL, toy_entry("draft", MODEL))
    proposer, sequence = DraftModelProposer(CachedModel(engine, 1)), running(toys, [1, 2, 3, 4])
    proposer.admit(sequence)
    proposer.read(sequence, len(sequence.tokens) - 1)
    proposer.start(sequence)
    assert [step.input_ids.shape[1] for step in engine.steps] == [3]
    missing = 1
    for kept, missing_after in ((3, 2), (2, 1), (3, 2), (1, 1), (0, 1), (3, 2), (3, 2)):
        engine.steps.clear()
        draft = proposer.propose([Ask(sequence, 3)])[0]
        widths = [step.input_ids.shape[1] for step in engine.steps]
        assert widths == [missing, 1, 1]
        for token in (*draft.tokens[:kept], (draft.tokens[kept] + 1) % 24 if kept < 3 else 0):
            sequence.context.push(token)
        missing = missing_after
    assert proposer.engine_seconds > 0


def test_a_long_gap_is_read_in_pieces(toys: Toys) -> None:
    engine = ToyEngine(MODEL, toy_entry("draft", MODEL))
    proposer, sequence = DraftModelProposer(CachedModel(engine, 1)), running(toys, [1, 2])
    proposer.admit(sequence)
    proposer.read(sequence, len(sequence.tokens) - 1)
    proposer.start(sequence)
    for token in range(20):
        sequence.context.push(token)
    assert proposer.propose([Ask(sequence, 2)])[0].tokens == expected_draft(sequence, 2).tokens
    assert max(step.input_ids.shape[1] for step in engine.steps) > MAX_STEP


def test_a_sequence_that_never_came_may_leave(toys: Toys) -> None:
    engine = ToyEngine(MODEL, toy_entry("draft", MODEL))
    for proposer in (NgramProposer(1, 3), ReplayProposer({}), DraftModelProposer(CachedModel(engine, 1))):
        proposer.retire(running(toys, [1]))


def test_a_method_asked_for_by_two_threads_is_made_once(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would know nothing of the sequences that the first has taken in."""
    both, bundle = Barrier(2), toys.generator().bundle

    def slow(*_: Any) -> ReplayProposer:
        with suppress(BrokenBarrierError):  # where both are in here at once, both go on
            both.wait(0.2)
        return ReplayProposer({})

    monkeypatch.setattr("specbuild.runtime.proposers.METHODS", {"slow": slow})
    proposers = Proposers(bundle, Means(2), {})
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(proposers.__getitem__, ["slow", "slow"])
    assert one is other is proposers["slow"]


def test_methods_are_known_by_name(toys: Toys) -> None:
    bundle = toys.generator().bundle
    assert {"off", *METHODS} == set(get_args(Method))
    assert isinstance(Proposers(bundle, Means(2), {})["ngram"], NgramProposer)
    with pytest.raises(RequestError, match=r"speculation method 'ngrm' is unknown. Did you mean 'ngram'\?"):
        Proposers(bundle, Means(2), {})["ngrm"]
    alone = bundle.manifest.model_copy(update={"engines": bundle.manifest.engines[:1]})
    with pytest.raises(BundleError, match=r"no 'draft' engine .*add a `speculation.draft` section"):
        Proposers(type(bundle)(bundle.path, alone), Means(2), {})["draft_model"]


def test_with_a_larger_budget_other_continuations_become_branches(toys: Toys) -> None:
    """The latest first; a chain as long as it vouches for, then two tokens of each, and never more than were asked for."""
    prompt = [1, 2, 3, 9, 0, 1, 2, 4, 8, 0, 1, 2, 3, 7, 0, 1, 2]
    proposer, sequence = NgramProposer(1, 3), running(toys, prompt)
    proposer.admit(sequence)

    def paths(**ask: int) -> list[tuple[int, ...]]:
        draft = proposer.propose([Ask(sequence, **ask)])[0]
        leaves = [node for node in range(len(draft)) if not draft.children(node)]
        assert len(draft) <= ask.get("budget", ask["draft_len"])
        return [tuple(draft.tokens[node] for node in draft.path(leaf)) for leaf in leaves]

    assert paths(draft_len=3) == []
    assert paths(draft_len=3, budget=4) == [(3, 7), (4, 8)]
    assert paths(draft_len=2, budget=3) == [(3, 7), (4,)]
    assert paths(draft_len=1, budget=9) == [(3,), (4,)]
    for token in (3, 7, 0):
        sequence.context.push(token)
    assert paths(draft_len=4) == [(1, 2, 3, 7)]
    assert paths(draft_len=4, budget=9) == [(1, 2, 3, 7)]


def test_lookup_goes_on_after_tokens_that_are_only_drafted(toys: Toys) -> None:
    proposer, sequence = NgramProposer(1, 3), running(toys, [1, 2, 3, 4, 9])
    proposer.admit(sequence)
    assert proposer.propose([Ask(sequence, 2, after=(1, 2))])[0].tokens == (3, 4)
    assert proposer.propose([Ask(sequence, 2)])[0].tokens == ()
