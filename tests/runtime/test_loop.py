"""The whole round over a toy engine that notices every wrong cache entry: output equals plain decoding from the definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import Plain, plainly
from toy_engine import ASCII, EOS, MAX_SEQ_LEN, VOCABULARY, Toys, invariant, toys

from specbuild.runtime.acceptance import RULES
from specbuild.runtime.draft import Draft
from specbuild.runtime.generator import Completion, Generator
from specbuild.runtime.ground import Ground
from specbuild.runtime.law import Law
from specbuild.runtime.proposers.base import Ask, Proposer
from specbuild.runtime.proposers.draft_model import DraftModelProposer
from specbuild.runtime.proposers.replay import ReplayProposer
from specbuild.runtime.sampling import SamplingParams

__all__ = ["toys"]
TOKENS = st.integers(0, VOCABULARY - 1)
SHAPES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1},
    {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    {"temperature": 1.5, "top_k": 5, "min_p": 0.05, "logit_bias": {3: 4.0, 7: -100.0}, "bad_words": [[2], [3, 4], [3, 3, 1]]},
    {"temperature": 1.2, "stop": ["$%", "&'(", "*"], "stop_token_ids": [9], "min_tokens": 3},
    {"temperature": 1, "ignore_eos": True, "logit_bias": {EOS: 3.0}},
    {"temperature": 0, "repetition_penalty": 2.0, "min_tokens": 6, "logit_bias": {EOS: 4.0}},
]


class TreeProposer(Proposer):
    """Random trees, seeded by what they follow; among the children the target's own token, often."""

    def __init__(self, toys: Toys) -> None:
        self.toys = toys

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self.tree(ask) for ask in asks]

    def tree(self, ask: Ask) -> Draft:
        sequence, random = ask.sequence, np.random.default_rng([len(ask.sequence.tokens), *ask.sequence.tokens])
        tokens: list[int] = []
        parents: list[int] = []
        while len(tokens) < ask.budget:
            parent = int(random.integers(-1, len(tokens))) if ask.branches else len(tokens) - 1
            path = Draft(tuple(tokens), tuple(parents)).path(parent)
            if len(path) >= ask.draft_len:
                break
            prefix = [tokens[node] for node in path]
            with sequence.context.after(prefix):
                law = sequence.transforms.law(self.toys.target.after(sequence.tokens), sequence.context)
            own = sequence.randomness.shared(law, len(path))
            tokens.append(own if random.random() < 0.6 else int(random.integers(VOCABULARY)))
            parents.append(parent)
        return Draft(tuple(tokens), tuple(parents))


def checked_generate(generator: Generator, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> list[Completion]:
    """Generate, with the caches' conservation checked after every delta; at the end nothing is held."""
    done: dict[int, Completion] = {}
    for delta in generator.stream(prompts, params):
        for cache in caches(generator):
            cache.check()
        if delta.completion is not None:
            done[delta.index] = delta.completion
    assert_idle(generator)
    return [done[index] for index in range(len(prompts))]


def caches(generator: Generator) -> list[Any]:
    models = [part._model for part in parts(generator) if isinstance(part, DraftModelProposer)]
    return [cache for model in (generator.loop.verifier._target, *models) for cache in (model.cache, model.reading)]


def parts(generator: Generator) -> list[Any]:
    """Every proposer that was made, and those inside others."""
    found: list[Any] = []
    pending: list[Any] = list(generator._proposers.made().values())
    while pending:
        found.append(pending.pop())
        inside = (getattr(found[-1], name, None) for name in ("_inner", "_retrieval", "_model"))
        pending += [part for part in inside if part is not None and hasattr(part, "propose") and part not in found]
    return found


def assert_idle(generator: Generator) -> None:
    """Whatever was held is free."""
    assert generator.loop.scheduler.idle
    assert [cache.live for cache in caches(generator)] == [0] * len(caches(generator))
    assert not generator.loop._began
    assert not generator._inboxes
    for part in parts(generator):
        assert not any(getattr(part, held, None) for held in ("_rows", "_indexes", "_own"))


def assert_plain(completion: Completion, plain: Plain) -> None:
    assert completion.token_ids == plain.tokens
    assert completion.text == plain.text
    assert (completion.finish_reason, completion.stop_reason) == (plain.finish_reason, plain.stop_reason)
    if completion.logprobs:
        assert [entry.token for entry in completion.logprobs] == list(plain.tokens)
        for entry, row in zip(completion.logprobs, plain.rows, strict=True):
            law = Law(np.arange(VOCABULARY), row.astype(np.float64))
            assert entry.logprob == float(law.log_p[entry.token]), "of another row, or of other bits"


@st.composite
def requests(draw: st.DrawFn, methods: Sequence[str]) -> tuple[list[int], SamplingParams]:
    prompt = [*draw(st.lists(TOKENS, max_size=29)), draw(st.integers(0, ASCII - 1))]
    method = draw(st.sampled_from(methods))
    params = SamplingParams(
        max_tokens=draw(st.integers(6, MAX_SEQ_LEN - len(prompt))),
        seed=draw(st.integers(0, 2**64 - 1)),
        logprobs=draw(st.sampled_from([None, 2])),
        speculation=method,
        draft_len=None if method == "off" else draw(st.sampled_from([1, 2, 4, 7])),
        tree_budget=None if method == "off" else draw(st.sampled_from([0, 7])),
        **draw(st.sampled_from(SHAPES)),
    )
    return prompt, params


METHODS = ("off", "ngram", "suffix", "draft_model", "cascade", "hybrid", "merged", "tree")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), batch=st.integers(1, 4), window=st.sampled_from([None, 3, 9]))
def test_any_mixture_of_requests_is_decoded_as_if_alone(toys: Toys, data: st.DataObject, batch: int, window: int | None) -> None:
    """Up to seven requests of any method and parameters on up to four rows; some end early, others take their rows."""
    generator = toys.generator(batch=batch, proposers={"tree": TreeProposer(toys)}, sliding_window=window)
    asked = data.draw(st.lists(requests(METHODS), min_size=1, max_size=7))
    completions = checked_generate(generator, [prompt for prompt, _ in asked], [params for _, params in asked])
    for completion, (prompt, params) in zip(completions, asked, strict=True):
        assert_plain(completion, plainly(toys.target, generator, prompt, params, window))


@settings(max_examples=15, deadline=None)
@given(request=requests(["ngram", "draft_model", "tree"]), broken=st.sampled_from(["step", "view", "both"]))
def test_an_engine_that_is_not_invariant_is_padded(toys: Toys, request: tuple[list[int], SamplingParams], broken: str) -> None:
    """Its logits depend on the pass; with every pass alike, speculation still changes nothing."""
    prompt, params = request
    probe = invariant(step_invariant=broken == "view", view_invariant=broken == "step")
    generator = toys.generator(batch=1, proposers={"tree": TreeProposer(toys)}, probe=probe)
    assert generator.notes
    plain = SamplingParams(**{**vars(params), "speculation": "off", "draft_len": None, "tree_budget": None})
    one, other = generator.generate([prompt], params)[0], generator.generate([prompt], plain)[0]
    assert (one.token_ids, one.text, one.logprobs) == (other.token_ids, other.text, other.logprobs)
    if params.speculation == "draft_model" and one.stats.num_draft_tokens:
        assert min(step.input_ids.shape[1] for step in toys.engines["draft"].steps) == 1, "a draft's bits matter to nobody"


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("draft_len", [1, 3, 7])
def test_a_wrong_token_at_any_place_of_a_recording_changes_nothing(toys: Toys, place: int, draft_len: int) -> None:
    """Two sequences side by side, one replayed with the planted fault, one faithfully: acceptance is ragged."""
    params = SamplingParams(temperature=1, max_tokens=20, seed=3, ignore_eos=True, speculation="replay", draft_len=draft_len)
    prompts = [[1, 2, 3], [4, 4]]
    plain = [plainly(toys.target, toys.generator(), prompt, params) for prompt in prompts]
    faulty = list(plain[0].tokens)
    faulty[place] = (faulty[place] + 1) % VOCABULARY
    generator = toys.generator(proposers={"replay": ReplayProposer({0: faulty, 1: plain[1].tokens})})
    completions = checked_generate(generator, prompts, [params] * 2)
    for completion, expected in zip(completions, plain, strict=True):
        assert_plain(completion, expected)
    rounds = -(-20 // (draft_len + 1))
    assert completions[1].stats.num_spec_steps == rounds
    assert completions[1].stats.draft_acceptance_rate == 1
    # The round that meets the fault ends there; the rest goes in full steps.
    before = place // (draft_len + 1) * (draft_len + 1)
    in_draft = place - before < draft_len
    expected_rounds = before // (draft_len + 1) + 1 + -(-(20 - place - 1) // (draft_len + 1)) if in_draft else rounds
    assert completions[0].stats.num_spec_steps == expected_rounds


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"coupled"}))
@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "cascade", "hybrid"])
def test_the_other_rules_are_greedy_at_temperature_zero(toys: Toys, rule: str, method: str) -> None:
    generator = toys.generator(verification=rule)
    params = SamplingParams(temperature=0, seed=1, max_tokens=30, speculation=method, ignore_eos=True)
    prompts = [[1, 2, 3, 1, 2], [7], [9, 9, 9]]
    for prompt, completion in zip(prompts, checked_generate(generator, prompts, [params] * 3), strict=True):
        assert_plain(completion, plainly(toys.target, generator, prompt, params))


@pytest.mark.parametrize("method", METHODS)
def test_a_sequence_may_fill_the_capacity_to_the_last_token(toys: Toys, method: str) -> None:
    generator = toys.generator(proposers={"tree": TreeProposer(toys)})
    prompts = [[1] * (MAX_SEQ_LEN - 1), [2, 3], [1, 2] * 12]
    params = [SamplingParams(seed=5, ignore_eos=True, speculation=method, max_tokens=MAX_SEQ_LEN - len(prompt)) for prompt in prompts]
    for prompt, each, completion in zip(prompts, params, checked_generate(generator, prompts, params), strict=True):
        assert len(prompt) + len(completion.token_ids) == MAX_SEQ_LEN
        assert_plain(completion, plainly(toys.target, generator, prompt, each))


def test_a_prompt_is_read_beside_a_sequence_that_fills_its_row(toys: Toys) -> None:
    """Its pieces are longer than what the other row has left."""
    generator = toys.generator()
    prompts = [[1] * (MAX_SEQ_LEN - 2), [2, 3] * 15]
    params = [SamplingParams(seed=5, speculation="draft_model", max_tokens=2, ignore_eos=True)] * 2
    for prompt, completion in zip(prompts, checked_generate(generator, prompts, params), strict=True):
        assert_plain(completion, plainly(toys.target, generator, prompt, params[0]))


def test_an_idle_round_does_nothing(toys: Toys) -> None:
    assert toys.generator().loop.round() == []


def test_speculation_is_really_on(toys: Toys) -> None:
    """Greedy and sampled: the drafts of a similar model are often kept, those of the target's own twin always."""
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=2, max_tokens=40, ignore_eos=True, speculation="draft_model")
        similar = toys.generator().generate([[1, 2, 3]], params)[0].stats
        assert 0.2 < similar.draft_acceptance_rate < 1
        twins = Toys(toys.folder, draft=toys.target)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("specbuild.runtime.proposers.load", twins.load)
            twin = twins.generator().generate([[1, 2, 3]], params)[0].stats
        assert twin.draft_acceptance_rate == 1
        assert twin.mean_acceptance_length == 5


def test_a_prompt_that_took_several_gaps_joins_in_a_gap_of_its_own(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joining copies all that was read: behind the last piece it would be a stall of its own."""
    monkeypatch.setattr("specbuild.runtime.pace.Pace.tokens", lambda pace, running, to_run: 4 if running else 512)
    generator = toys.generator(interactive=True)
    loop, done = generator.loop, []
    read, start = loop.verifier.read, loop.verifier.start
    monkeypatch.setattr(loop.verifier, "read", lambda sequence, count: (done.append(count), read(sequence, count)))
    monkeypatch.setattr(loop.verifier, "start", lambda sequence: (done.append("joins"), start(sequence)))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, speculation="off")

    def gaps(prompt: list[int], rounds: int) -> list[list[Any]]:
        loop.scheduler.submit(generator.intake.sequence(prompt, params))
        seen = []
        for _ in range(rounds):
            done.clear()
            loop.round()
            seen.append(list(done))
        return seen

    assert gaps([1, 2, 3], 1) == [[2, "joins"]]
    assert gaps([4] * 10, 5) == [[4], [4], [1], ["joins"], []]
    assert gaps([5] * 4, 2) == [[3, "joins"], []], "a short one is read and joins at once"


class Choosy(TreeProposer):
    """Has nothing to go on after every other token."""

    def __init__(self, toys: Toys) -> None:
        super().__init__(toys)
        self.asked: dict[bool, set[int]] = {False: set(), True: set()}

    def ground(self, ask: Ask) -> Ground | None:
        return Ground() if len(ask.tokens) % 2 else None

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        for ask in asks:
            self.asked[bool(len(ask.tokens) % 2)].add(ask.draft_len)
        return super().propose(asks)


def test_where_lengths_are_chosen_what_a_draft_would_rest_on_is_asked_first(toys: Toys) -> None:
    choosy = Choosy(toys)
    params = SamplingParams(temperature=1, seed=3, max_tokens=40, ignore_eos=True, speculation="ngram")
    generator = toys.generator(interactive=True, proposers={"ngram": choosy})
    (answer,) = checked_generate(generator, [[5, 6]], [params])
    assert answer.token_ids == plainly(toys.target, generator, [5, 6], params).tokens
    assert choosy.asked[False] == {0}
    assert max(choosy.asked[True]) > 1
