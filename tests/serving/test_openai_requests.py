"""What OpenAI's API may be asked, read without a server: what is taken, what is refused, and that nothing breaks the door."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from specbuild.bundle import Bundle
from specbuild.errors import RequestError
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.tokenizer import Tokenizer
from specbuild.triton.openai.app import Endpoints
from specbuild.triton.openai.errors import RefusedError
from specbuild.triton.openai.job import Job
from specbuild.triton.openai.requests import ChatRequest, CompletionRequest, Extension

LENGTH = 1024
"""Of a sequence of the tiny bundle."""


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


@pytest.fixture(scope="module")
def tokenizer(bundle: Bundle) -> Tokenizer:
    return Tokenizer(bundle.path / "tokenizer", bundle.manifest.vocabulary)


@pytest.fixture
def read(tokenizer: Tokenizer) -> Any:
    """Fields → the job of a chat, or of a completion where a prompt is among them."""

    def job(**fields: Any) -> Job:
        default: dict[str, Any] = {} if "prompt" in fields or "messages" in fields else {"messages": [{"role": "user", "content": "Hi"}]}
        kind = CompletionRequest if "prompt" in fields else ChatRequest
        return kind.read(json.dumps({"model": "specbuild"} | default | fields).encode()).job(tokenizer, LENGTH)

    return job


def test_the_extension_has_every_field_that_openai_has_not() -> None:
    ours = {field.name for field in dataclasses.fields(SamplingParams)}
    assert ours | {"priority", "timeout_ms"} == (ChatRequest.model_fields.keys() & ours) | Extension.model_fields.keys()
    assert not ChatRequest.model_fields.keys() & Extension.model_fields.keys()


def test_every_field_arrives(read: Any) -> None:
    extension: dict[str, Any] = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "bad_words": [[1, 2]],
        "min_tokens": 2,
        "stop_token_ids": [9],
        "ignore_eos": True,
        "speculation": "ngram",
        "draft_len": 3,
        "tree_budget": 6,
        "share_history": False,
        "tenant": "me",
    }
    direct: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "max_tokens": 7,
        "seed": 3,
        "stop": ["x"],
    }
    job = read(
        **direct,
        logit_bias={"42": -100},
        logprobs=True,
        top_logprobs=4,
        user="me",
        n=1,
        specbuild=extension | {"priority": -2, "timeout_ms": 1500},
    )
    ((prompt, params),) = job.choices
    assert prompt == read().choices[0][0]
    assert params == SamplingParams(**direct, logit_bias={42: -100}, logprobs=4, **extension)
    assert (job.priority, job.timeout) == (-2, 1.5)


def test_what_is_null_or_on_is_the_default(read: Any) -> None:
    plain = read()
    assert read(temperature=None, stop=None, n=None, tools=None, logit_bias=None, specbuild={"speculation": "on"}) == plain
    assert plain.choices[0][1].max_tokens == LENGTH - len(plain.choices[0][0])
    assert read(prompt="abc").choices[0][1].max_tokens == 16


def test_what_asks_for_nothing_is_taken(read: Any) -> None:
    assert read(tools=[], tool_choice="auto", response_format={"type": "text"}, store=False, parallel_tool_calls=True) == read()
    assert read(prompt="a", echo=False, suffix="", best_of=2, n=2) == read(prompt="a", n=2)


def test_parts_of_a_message_are_joined(read: Any) -> None:
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "fox"}]
    assert read(messages=[{"role": "user", "content": parts}]) == read(messages=[{"role": "user", "content": "the fox"}])


def test_an_answer_of_ours_may_be_given_back(read: Any) -> None:
    answer: dict[str, Any] = {"role": "assistant", "content": "Hello", "refusal": None, "tool_calls": None, "annotations": []}
    asked = [{"role": "user", "content": "Hi", "name": "Ann"}, answer]
    assert read(messages=asked) == read(messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])


def test_seeds_of_choices(read: Any) -> None:
    def seeds(**fields: Any) -> list[int | None]:
        return [params.seed for _, params in read(**fields).choices]

    assert seeds(n=3, seed=5) == [5, 6, 7]
    assert seeds(n=2, seed=2**64 - 1) == [2**64 - 1, 0]
    assert seeds(n=2, seed=-1) == [2**64 - 1, 0]
    assert seeds(n=2) == [None, None]
    assert seeds(prompt=["a", "b"], n=2, seed=1) == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"temprature": 1}, "'temprature' is no field here. Did you mean 'temperature'?", "temprature"),
        ({"draft_len": 1}, "'draft_len' belongs into 'specbuild'", "draft_len"),
        ({"specbuild": {"draftlen": 1}}, "specbuild: 'draftlen' is no field here. Did you mean 'draft_len'?", "specbuild.draftlen"),
        ({"specbuild": {"draft_len": "1"}}, "specbuild.draft_len is '1': input should be a valid integer", "specbuild.draft_len"),
        ({"specbuild": []}, "specbuild: it is [], but must be a JSON object", "specbuild"),
        ({"temperature": "1"}, "temperature is '1': input should be a valid number", "temperature"),
        ({"temperature": True}, "temperature is True: input should be a valid number", "temperature"),
        ({"n": 0}, "n is 0: input should be greater than or equal to 1", "n"),
        ({"seed": 2**64}, "seed is 18446744073709551616: input should be less than", "seed"),
        ({"stop": [""]}, "every stop string must have at least one character", None),
        ({"logit_bias": {"a": 1}}, "logit_bias: the key 'a' is no token id", "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[1] is 101.0, but must be at least -100", None),
        ({"top_logprobs": 3}, "top_logprobs is 3, but logprobs is false; set it to true", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21: input should be less than or equal to 20", "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens is 3, but max_completion_tokens is 4", None),
        ({"max_tokens": 0}, "max_tokens is 0, but must be at least 1", None),
        ({"tools": [{}]}, "tools is [{}], which this server does not do; leave it out", "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format is {'type': 'json_object'}, which", "response_format"),
        ({"messages": []}, "messages is []: list should have at least 1 item", "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing", "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, "messages has 200000 bytes, but no text above 131072", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content: part 0 is {'type': 'image_url'}",
            None,
        ),
        ({"prompt": "a", "echo": True}, "echo is True, which this server does not do", "echo"),
        ({"prompt": "a", "best_of": 2}, "best_of is 2, but must be n, which is 1", "best_of"),
        ({"prompt": [[1], "a", 2]}, "prompt: it is [[1], 'a', 2], but must be text, token ids, or a list", "prompt"),
        ({"prompt": [True]}, "prompt: it is [True], but must be text", "prompt"),
        ({"prompt": []}, "prompt: it is [], but must be text", "prompt"),
        ({"prompt": ["a"] * 100, "n": 2}, "100 prompts with n 2 are more than the 128 choices of one request", "n"),
    ],
)
def test_refusals(read: Any, fields: dict[str, Any], message: str, param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        read(**fields)
    assert message in str(refused.value)
    if param is not None:
        assert isinstance(refused.value, RefusedError)
        assert refused.value.param == param


@pytest.fixture(scope="module")
def lonely(bundle: Bundle) -> Iterator[TestClient]:
    """A door behind which there is no server; what breaks in it is raised here."""
    with TestClient(Endpoints(bundle, "127.0.0.1:1").app()) as client:
        yield client


def test_without_a_server(lonely: TestClient) -> None:
    for stream in (False, True):
        answer = lonely.post("/v1/completions", json={"model": "specbuild", "prompt": "a", "stream": stream})
        assert (answer.status_code, answer.json()["error"]["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
    assert lonely.get("/health").status_code == 503
    assert lonely.get("/v1/models").json()["data"][0]["max_model_len"] == LENGTH


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/completions", 405), ("POST", "/v1/embeddings", 404)])
def test_errors_of_routes_have_the_same_shape(lonely: TestClient, method: str, path: str, status: int) -> None:
    answer = lonely.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert f"{method} {path}" in answer.json()["error"]["message"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**65) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *ChatRequest.UNSUPPORTED, "unknown"}))
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.text(max_size=4), "content": st.text(max_size=4)}) | st.dictionaries(st.text(), JSON), max_size=2
)
FIELDS = st.dictionaries(NAMES, JSON, max_size=4)
EXTENSIONS = st.dictionaries(st.sampled_from(sorted(Extension.model_fields)), JSON, max_size=3)
WHOLE = st.builds(
    lambda fields, messages, extension: {"model": "specbuild", "messages": messages, "prompt": "a", "specbuild": extension} | fields,
    FIELDS,
    MESSAGES,
    EXTENSIONS,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=WHOLE, path=st.sampled_from(["chat/completions", "completions"]), data=st.data())
def test_whatever_comes_the_door_answers_in_its_shape(lonely: TestClient, body: dict[str, Any], path: str, data: st.DataObject) -> None:
    """A fault of the door's own would be raised; what it takes comes back as: no server."""
    body.pop("prompt" if path.startswith("chat") else "messages", None)
    raw = json.dumps(body).encode()
    raw = data.draw(st.sampled_from([raw] * 8 + [raw[:-1], b"[" * 9999, b"\xff" + raw]))
    answer = lonely.post(f"/v1/{path}", content=raw)
    assert answer.status_code in (400, 404, 503)
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
