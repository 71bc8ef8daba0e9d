"""A request is read as it was meant, or refused with field, value and bound."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbuild.errors import RequestError
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton.call import Call, parse
from specbuild.triton.fields import BY_NAME, INPUTS, OUTPUTS
from specbuild.triton.wire import inputs, tensors

ALL = {output.name for output in OUTPUTS}


def encode(text: str) -> list[int]:
    return list(text.encode())


def call(strangers: tuple[str, ...] = (), **values: Any) -> Call:
    arrays = {name: value if isinstance(value, np.ndarray) else BY_NAME[name].kind.write(value) for name, value in values.items()}
    return parse(arrays, encode, wanted=ALL, max_bytes=1000, strangers=strangers)


def test_a_prompt_in_each_of_its_forms() -> None:
    messages = [{"role": "user", "content": "Grüße"}]
    assert call(text_input=["Grüße"]).prompt == "Grüße"
    assert call(input_ids=[3, 1, 2]).prompt == [3, 1, 2]
    assert call(chat=messages).prompt == messages


def test_what_a_client_sends_is_what_the_service_gets() -> None:
    params = SamplingParams(
        temperature=0.9,
        top_k=5,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=-0.3,
        frequency_penalty=0.7,
        logit_bias={3: -100.0, 4: 0.1},
        bad_words=[[1, 2], [3]],
        min_tokens=2,
        max_tokens=9,
        seed=2**64 - 1,
        stop=["\n", "é"],
        stop_token_ids=[7, 8],
        ignore_eos=True,
        logprobs=0,
        speculation="ngram",
        draft_len=3,
    )
    arrays = tensors("Hi", params, streaming=True, priority=-2, timeout=1.5)
    read = parse(arrays, encode, wanted=ALL, max_bytes=1000)
    assert (read.prompt, read.params, read.streaming, read.priority, read.timeout) == ("Hi", params, True, -2, 1.5)
    assert {entry.name() for entry in inputs(arrays)} == set(arrays)


def test_defaults_are_not_sent() -> None:
    assert set(tensors("Hi", SamplingParams(), streaming=False, priority=0, timeout=None)) == {
        "text_input",
        "streaming",
        "return_finish_reason",
        "return_stop_reason",
        "sampling_param_return_perf_metrics",
    }


@given(st.integers(1, 9999))
def test_a_number_is_the_decimal_that_was_meant(value: int) -> None:
    written = value / 10_000
    assert call(text_input=["x"], sampling_param_top_p=written).params.top_p == written


def test_bad_words_are_strings_or_tokens() -> None:
    assert call(text_input=["x"], sampling_param_bad_words=["no", [5, 6]]).params.bad_words == ((110, 111), (32, 110, 111), (5, 6))


def test_speculation_on_is_the_recipes() -> None:
    assert call(text_input=["x"], speculation="on").params.speculation is None
    assert call(text_input=["x"], speculation="off").params.speculation == "off"


def test_outputs_are_those_that_are_asked_for() -> None:
    assert [output.name for output in call(text_input=["x"]).outputs] == ["text_output", "output_ids"]
    asked = call(text_input=["x"], return_finish_reason=True, return_stop_reason=False, sampling_param_logprobs=0)
    assert [output.name for output in asked.outputs] == ["text_output", "output_ids", "finish_reason", "logprobs"]
    figures = {output.name for output in call(text_input=["x"], sampling_param_return_perf_metrics=True).outputs}
    assert {"acceptance_rate", "total_draft_tokens", "acceptance_histogram", "seed"} <= figures
    assert call(text_input=["x"], return_cumulative_logprob=True).params.logprobs == 0


def test_the_prompt_is_repeated_when_it_is_asked_for() -> None:
    assert call(text_input=["x"]).echo == ""
    assert call(text_input=["x"], sampling_param_exclude_input_from_output=False).echo == "x"
    with pytest.raises(RequestError, match="only text_input can be repeated"):
        call(input_ids=[1], sampling_param_exclude_input_from_output=False)


def raw(*values: bytes) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one of text_input, input_ids, chat must be the prompt; none was given"),
        ({"text_input": ["a"], "input_ids": [1]}, "text_input and input_ids were given"),
        ({"text_input": ["a", "b"]}, "text_input has 2 strings"),
        ({"text_input": raw(b"a\xff")}, "text_input is not UTF-8: byte 0xff at 1"),
        ({"text_input": raw(b"\xed\xa0\x80")}, "text_input is not UTF-8: byte 0xed at 0"),
        ({"text_input": ["a" * 1001]}, "text_input has 1001 bytes, but no prompt above 1000 fits"),
        ({"input_ids": np.zeros((1, 2), np.int32)}, r"input_ids has shape \[1, 2\], but must have one dimension"),
        ({"chat": raw(b"{")}, "chat is not JSON: .*; it begins with '{'"),
        ({"chat": raw(b"[" * 999)}, "chat is not JSON"),
        ({"chat": {}}, "chat is {}, but must be a JSON array"),
        ({"chat": [{"role": "user"}]}, r"chat\[0\] is {'role': 'user'}, but must be an object whose role and content are strings"),
        ({"sampling_param_temperature": float("nan")}, "temperature is nan, but must be a finite number, at least 0"),
        ({"sampling_param_temperature": -1.0}, "temperature is -1.0, but must be at least 0"),
        ({"sampling_param_top_p": np.ones(2, np.float32)}, r"sampling_param_top_p has shape \[2\], but must hold exactly one value"),
        ({"sampling_param_top_p": np.ones(0, np.float32)}, r"sampling_param_top_p has shape \[0\]"),
        ({"sampling_param_max_tokens": 0}, "max_tokens is 0, but must be at least 1"),
        ({"sampling_param_logprobs": 21}, "logprobs is 21, but must be at least 0 and at most 20"),
        ({"sampling_param_logit_bias": raw(b'{"1": NaN}')}, r"logit_bias\[1\] is nan"),
        ({"sampling_param_logit_bias": {"one": 1}}, "sampling_param_logit_bias has the key 'one', but keys are token ids"),
        ({"sampling_param_logit_bias": [1]}, "must be a JSON object"),
        ({"sampling_param_bad_words": [""]}, "sampling_param_bad_words has ''"),
        ({"sampling_param_bad_words": {}}, "must be a JSON array"),
        ({"sampling_param_best_of": 2}, "sampling_param_best_of is 2, but must be 1"),
        ({"sampling_param_stop": [""]}, "every stop string must have at least one character"),
        ({"draft_len": 0}, "draft_len is 0, but must be at least 1"),
        ({"priority": 40000}, "priority is 40000, but must be at least -32768 and at most 32768"),
        ({"timeout_ms": 0}, "timeout_ms is 0, but must be at least 1"),
        ({"strangers": ("sampling_param_temprature",)}, "'sampling_param_temprature' is no input of this model. Did you mean"),
    ],
)
def test_refusals_name_field_value_and_bound(values: dict[str, Any], message: str) -> None:
    prompt = {} if not values or {"text_input", "input_ids", "chat"} & values.keys() else {"text_input": ["x"]}
    with pytest.raises(RequestError, match=message):
        call(**prompt, **values)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
JSON_TEXTS = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(json.dumps)
TEXTUAL = [field.name for field in INPUTS if field.kind.type == "TYPE_STRING"]


@given(st.sampled_from(TEXTUAL), st.binary(max_size=20) | JSON_TEXTS.map(str.encode))
def test_any_text_is_read_or_refused(name: str, value: bytes) -> None:
    """Whatever else is raised would be our own mistake."""
    arrays = ({} if name == "chat" else {"text_input": raw(b"x")}) | {name: raw(value)}
    with suppress(RequestError):
        assert isinstance(parse(arrays, encode, wanted=ALL, max_bytes=1000), Call)
