"""Sampling parameters, and the transforms against a plain float64 reading of their definition."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specbuild.errors import RequestError, VerificationError
from specbuild.runtime.context import Context
from specbuild.runtime.draft import Draft
from specbuild.runtime.logprobs import logprobs
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms


def reference(row: list[float], params: SamplingParams, prompt: list[int], output: list[int], eos: tuple[int, ...]) -> dict[int, float]:
    """Token → probability, by the book."""
    scores = [value + params.logit_bias.get(token, 0.0) for token, value in enumerate(row)]
    for word in params.bad_words:
        start = list(word[:-1])
        if not start or (prompt + output)[-len(start) :] == start:
            scores[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        for token in (*params.stop_token_ids, *(() if params.ignore_eos else eos)):
            scores[token] = -math.inf
    for token in set(prompt + output):
        value = scores[token]
        scores[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token, count in Counter(output).items():
        scores[token] -= params.frequency_penalty * count + params.presence_penalty
    ranked = sorted((token for token, value in enumerate(scores) if value > -math.inf), key=lambda token: (-scores[token], token))
    if params.temperature == 0:
        return {ranked[0]: 1.0}
    ranked = ranked[: params.top_k or len(ranked)]
    weights = {token: math.exp((scores[token] - scores[ranked[0]]) / params.temperature) for token in ranked}
    goal, mass, nucleus = params.top_p * math.fsum(weights.values()), 0.0, []
    for token in ranked:
        nucleus.append(token)
        mass += weights[token]
        if params.top_p < 1 and mass >= goal:
            break
    likely = [token for token in nucleus if weights[token] >= params.min_p]
    whole = math.fsum(weights[token] for token in likely)
    return {token: weights[token] / whole for token in likely}


def as_dict(transforms: Transforms, row: NDArray[np.float32], context: Context) -> dict[int, float]:
    law = transforms.law(row, context)
    assert (np.diff(law.tokens) > 0).all(), "tokens ascend"
    return dict(zip(law.tokens.tolist(), law.p.tolist(), strict=True))


V = 12
ids = st.integers(0, V - 1)
# Numbers that float32 holds exactly, so that equal logits stay equal in both readings.
quarters = st.integers(-20, 20).map(lambda n: n / 4)


@st.composite
def requests(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.5, 0.8, 1.0, 2.0])),
        top_k=draw(st.sampled_from([None, 0, 1, 2, 5, 100])),
        top_p=draw(st.sampled_from([1.0, 0.05, 0.3, 0.5, 0.9, 0.95])),
        min_p=draw(st.sampled_from([0.0, 0.01, 0.2, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 2.0, 0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5, -1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.25, -0.5])),
        logit_bias=draw(st.dictionaries(ids, quarters, max_size=3)),
        bad_words=draw(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3)),
        min_tokens=draw(st.sampled_from([0, 2, 5])),
        stop_token_ids=draw(st.lists(ids, max_size=2)),
        ignore_eos=draw(st.booleans()),
    )


@settings(max_examples=600, deadline=None)
@given(requests(), st.lists(quarters, min_size=V, max_size=V), st.lists(ids, max_size=6), st.lists(ids, max_size=6))
def test_law_is_its_definition(params: SamplingParams, row: list[float], prompt: list[int], output: list[int]) -> None:
    context = Context(prompt)
    for token in output:
        context.push(token)
    padded = np.array([*row, 99.0, 99.0], dtype=np.float32)  # padding ids look likely, and are not in the vocabulary
    seen = as_dict(Transforms(params, V, eos_token_ids=(1,)), padded, context)
    expected = reference(row, params, prompt, output, (1,))
    assert seen.keys() == expected.keys()
    assert all(math.isclose(seen[token], expected[token], rel_tol=1e-9) for token in seen)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 1.5, "top_p": 0.999},
        {"temperature": 0.3, "min_p": 0.02},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 3000, "top_p": 0.5, "min_p": 0.001},
        {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.3, "presence_penalty": 0.3, "frequency_penalty": 0.7},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_law_is_its_definition_over_a_real_vocabulary(options: dict[str, Any], spread: float) -> None:
    generator = np.random.default_rng(5)
    row = (generator.standard_normal(49_152) * spread).astype(np.float32)
    prompt, output = generator.integers(0, 49_152, 300).tolist(), generator.integers(0, 100, 200).tolist()
    context = Context(prompt)
    for token in output:
        context.push(token)
    params = SamplingParams(**options)
    seen = as_dict(Transforms(params, row.size), row, context)
    expected = reference(row.astype(float).tolist(), params, prompt, output, ())
    assert seen.keys() == expected.keys()
    assert np.allclose([seen[token] for token in expected], list(expected.values()), rtol=2e-6, atol=0)


def test_ties_go_to_the_lowest_id() -> None:
    row = np.array([1, 3, 3, 3, 0], dtype=np.float32)
    context = Context([])
    assert as_dict(Transforms(SamplingParams(temperature=0), 5), row, context) == {1: 1.0}
    assert as_dict(Transforms(SamplingParams(top_k=2), 5), row, context).keys() == {1, 2}
    assert as_dict(Transforms(SamplingParams(top_p=0.3), 5), row, context).keys() == {1}


@pytest.mark.parametrize("options", [{}, {"min_p": 0.5}, {"top_p": 0.999}])
def test_the_hottest_temperature_is_the_uniform_law(options: dict[str, Any]) -> None:
    """The largest float32, as it may come over the wire, and a law with nothing cut off it."""
    row = np.linspace(-9, 9, 20).astype(np.float32)
    assert as_dict(Transforms(SamplingParams(temperature=3.4e38, **options), 20), row, Context([])) == pytest.approx(
        dict.fromkeys(range(20), 0.05)
    )


def test_greedy_is_the_limit_of_low_temperature() -> None:
    row = np.array([1, 3, 2], dtype=np.float32)
    cold = as_dict(Transforms(SamplingParams(temperature=0.001), 3), row, Context([]))
    assert cold[1] == pytest.approx(1.0)


def test_bad_words_reach_back_into_the_prompt_and_wait_for_their_start() -> None:
    transforms = Transforms(SamplingParams(bad_words=[[1, 2], [0]]), 3)
    row = np.zeros(3, dtype=np.float32)
    assert as_dict(transforms, row, Context([1])).keys() == {1}
    assert as_dict(transforms, row, Context([2])).keys() == {1, 2}


def test_a_row_without_a_token_or_with_nan_is_refused() -> None:
    row = np.zeros(2, dtype=np.float32)
    with pytest.raises(RequestError, match="forbid every token"):
        Transforms(SamplingParams(bad_words=[[0], [1]]), 2).law(row, Context([]))
    row[1] = np.nan
    with pytest.raises(VerificationError, match="logit of token 1 is nan"):
        Transforms(SamplingParams(), 2).law(row, Context([]))


@given(st.lists(ids, max_size=5), st.lists(st.one_of(ids, st.none()), max_size=60))
def test_context_counts_what_was_pushed_and_not_taken_back(prompt: list[int], steps: list[int | None]) -> None:
    context, output = Context(prompt), list[int]()
    for step in steps:
        if step is not None:
            context.push(step)
            output.append(step)
        elif output:
            assert context.pop() == output.pop()
        tokens, counts = context.seen()
        expected = {token: Counter(output)[token] for token in prompt + output}
        assert dict(zip(tokens.tolist(), counts.tolist(), strict=True)) == expected
        assert context.tokens == prompt + output
        assert (context.position, context.output_length) == (len(prompt) + len(output), len(output))


def test_penalties_count_the_prefix_of_each_node_and_leave_no_trace() -> None:
    """A tree: 0 → (1, 2), 2 → 1. Siblings do not count each other."""
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, bad_words=[[2, 1]])
    transforms = Transforms(params, 4)
    draft = Draft(tokens=(0, 1, 2, 1), parents=(-1, 0, 0, 2))
    rows = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    context = Context([3])
    context.push(0)
    laws = transforms.laws(rows, draft, context)
    for node, path in [(-1, []), (3, [0, 2, 1]), (1, [0, 1]), (2, [0, 2]), (0, [0])]:
        law = laws(node)
        expected = reference(rows[node + 1].astype(float).tolist(), params, [3], [0, *path], ())
        assert law.tokens.tolist() == sorted(expected)
        assert np.allclose(law.p, [expected[token] for token in sorted(expected)], rtol=1e-6)
        assert context.tokens == [3, 0]
    assert context.seen()[1].tolist() == [0, 1]


def test_logprobs_are_of_the_raw_logits() -> None:
    row = np.log(np.array([0.1, 0.4, 0.1, 0.4, 1000], dtype=np.float64)).astype(np.float32)
    seen = logprobs(row, token=2, count=3, vocabulary_size=4)
    assert seen.token == 2
    assert seen.logprob == pytest.approx(math.log(0.1), abs=1e-6)
    assert [token for token, _ in seen.top] == [1, 3, 0]
    assert seen.top[0][1] == pytest.approx(math.log(0.4), abs=1e-6)
    assert logprobs(row, token=2, count=0, vocabulary_size=4).top == ()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": -0.5}, "temperature is -0.5, but must be at least 0"),
        ({"temperature": math.nan}, "temperature is nan, but must be a finite number, at least 0"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": 1e-9}, "temperature is 1e-09, but must be 0 (greedy) or at least 0.0001"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": -1}, "top_k is -1, but must be at least 0"),
        ({"top_k": 2.0}, "top_k is 2.0, but must be a whole number"),
        ({"top_p": 0.0}, "top_p is 0.0, but must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1, but must be at least 0 and at most 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, but must be at least 0.001 and at most 1000"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty is 1e-45, but"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5, but must be at least -2 and at most 2"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3"),
        ({"logit_bias": {4: math.inf}}, "logit_bias[4] is inf"),
        ({"logit_bias": {-1: 0.5}}, "logit_bias's token id is -1"),
        ({"bad_words": [[]]}, "bad_words has an empty sequence"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9, above max_tokens 8"),
        ({"max_tokens": 0}, "max_tokens is 0, but must be at least 1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, f"seed is {2**64}"),
        ({"stop": "END"}, "stop is 'END', but must be a list"),
        ({"stop": None}, "stop is None, but must be a list"),
        ({"stop": iter([""])}, "at least one character"),
        ({"stop_token_ids": {1: 2}}, "stop_token_ids is {1: 2}, but must be a list"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5, but must be a list"),
        ({"bad_words": [1]}, "a word of bad_words is 1, but must be a list"),
        ({"bad_words": ["ab"]}, "a word of bad_words is 'ab', but must be a list"),
        ({"logit_bias": [3]}, "logit_bias is [3], but must map token ids to numbers"),
        ({"logit_bias": {3: 10**400}}, "must be a finite number"),
        ({"temperature": 10**400}, "must be a finite number"),
        ({"ignore_eos": "no"}, "ignore_eos is 'no', but must be True or False"),
        ({"speculation": 3}, "speculation is 3, but must be the name of a method"),
        ({"stop": [""]}, "at least one character"),
        ({"logprobs": 21}, "logprobs is 21, but must be at least 0 and at most 20"),
        ({"draft_len": 0}, "draft_len is 0"),
        ({"speculation": "off", "draft_len": 3}, "speculation is 'off'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_requests_are_refused_with_field_value_and_bound(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**options)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("options", [{"logit_bias": {10: 1.0}}, {"bad_words": [[3, 10]]}, {"stop_token_ids": [10]}])
def test_token_ids_outside_the_vocabulary_are_refused(options: dict[str, Any]) -> None:
    SamplingParams(**options).check(11)
    with pytest.raises(RequestError, match="token id 10, but the vocabulary ends at 9"):
        SamplingParams(**options).check(10)


def test_params_do_not_follow_the_lists_they_came_from() -> None:
    stop, bias = ["."], {1: 2.0}
    params = SamplingParams(stop=stop, logit_bias=bias)
    stop.append("!")
    bias[2] = 1.0
    assert params.stop == (".",)
    assert dict(params.logit_bias) == {1: 2.0}
