"""Drafts of several sources in one tree: which nodes it has, whom it asks for what, and that the output stays plain decoding's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain import plainly
from test_cascade import running
from toy_engine import VOCABULARY, Toys, toys

from specbuild.runtime.draft import Draft
from specbuild.runtime.proposers.base import Ask, Proposer
from specbuild.runtime.proposers.merged import MergedProposer, merged
from specbuild.runtime.proposers.replay import ReplayProposer
from specbuild.runtime.sampling import SamplingParams

__all__ = ["toys"]


class Listening(Proposer):
    """Drafts by recording, and remembers what it was asked for."""

    def __init__(self, recording: Sequence[int]) -> None:
        self.replay = ReplayProposer({0: recording})
        self.asked: list[tuple[int, int]] = []

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self.asked += [(ask.draft_len, ask.budget) for ask in asks]
        return self.replay.propose(asks)


def tree(paths: Sequence[tuple[int, ...]]) -> Draft:
    """What has ``paths`` and no others but their beginnings."""
    nodes = list(dict.fromkeys(path[:end] for path in paths for end in range(1, len(path) + 1)))
    return Draft(tuple(node[-1] for node in nodes), tuple(nodes.index(node[:-1]) if node[1:] else -1 for node in nodes))


TREES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), max_size=2).map(tree)


def texts(draft: Draft) -> list[tuple[int, ...]]:
    return [tuple(draft.tokens[step] for step in draft.path(node)) for node in range(len(draft))]


@given(drafts=st.lists(TREES, min_size=1, max_size=3), budget=st.integers(6, 18))
def test_every_path_is_there_once_as_far_as_there_is_room(drafts: list[Draft], budget: int) -> None:
    found, every = texts(merged(drafts, budget)), set().union(*map(texts, drafts))
    assert len(set(found)) == len(found) <= budget
    assert found[: len(drafts[0])] == texts(drafts[0])
    assert set(found) <= every
    if len(every) <= budget:
        assert set(found) == every


def test_two_chains_share_their_beginning() -> None:
    chains = [Draft.chain([1, 2, 3]), Draft.chain([1, 2, 4]), Draft.chain([5, 2])]
    assert (merged(chains, 7).tokens, merged(chains, 7).parents) == ((1, 2, 3, 4, 5, 2), (-1, 0, 1, 1, -1, 4))
    assert merged(chains, 4).tokens == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("first", "ask", "rule", "tokens", "asked"),
    [
        ([1, 2, 3], {"budget": 7}, "coupled", (1, 2, 3, 4), [(3, 3), (3, 3)]),
        ([1, 2, 3], {"budget": 9}, "target_only", (1, 2, 3, 4), [(3, 4), (3, 4)]),
        ([1, 2, 3], {}, "coupled", (1, 2, 3), [(3, 3)]),
        ([], {}, "coupled", (1, 2, 4), [(3, 3), (3, 3)]),
        ([1, 2, 3], {"budget": 7}, "traversal", (1, 2, 3), [(3, 7)]),
        ([], {"budget": 7}, "recursive", (1, 2, 4), [(3, 7), (3, 7)]),
    ],
)
def test_who_is_asked_for_what(
    toys: Toys, first: list[int], ask: dict[str, int], rule: str, tokens: tuple[int, ...], asked: list[tuple[int, int]]
) -> None:
    """Where a chain is wanted, or laws are needed, it is the first that has a draft."""
    sources = [Listening(first), Listening([1, 2, 4])]
    (draft,) = MergedProposer(*sources).propose([Ask(running(toys, [9], 0, rule), 3, **ask)])
    assert draft.tokens == tokens
    assert [each for source in sources for each in source.asked] == asked


def test_a_token_that_either_source_knows_is_accepted(toys: Toys) -> None:
    """One source is right at every other place, another at the rest."""
    generator, params = toys.generator(), SamplingParams(seed=3, max_tokens=40, ignore_eos=True)
    right = list(plainly(toys.target, generator, [1, 2], params).tokens)
    recordings = [[token if place % 2 == odd else (token + 1) % VOCABULARY for place, token in enumerate(right)] for odd in (0, 1)]
    opened = toys.generator(proposers={"both": MergedProposer(*(ReplayProposer({0: recording}) for recording in recordings))})
    drafting = replace(params, speculation="both", draft_len=1)
    (tree,) = opened.generate([[1, 2]], replace(drafting, tree_budget=2))
    assert (list(tree.token_ids), tree.stats.num_spec_steps, tree.stats.num_accepted_tokens) == (right, 20, 20)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sources", [["draft", "middle"], ["ngram", "suffix", "draft"]])
def test_the_output_is_plain_decodings(toys: Toys, sources: list[str], temperature: float) -> None:
    """Several sequences, with chains and trees side by side."""
    generator = toys.generator(settings={"method": "merged", "merged": sources})
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=30, ignore_eos=True, draft_len=3, tree_budget=7 * (seed % 2))
        for seed in range(6)
    ]
    answers = generator.generate([[seed + 1, 2] for seed in range(6)], params)
    for seed, (answer, each) in enumerate(zip(answers, params, strict=True)):
        assert answer.token_ids == plainly(toys.target, generator, [seed + 1, 2], each).tokens
    a_round = [answer.stats.num_draft_tokens / answer.stats.num_spec_steps for answer in answers]
    assert sum(a_round[1::2]) > sum(a_round[::2]), "trees are larger"
