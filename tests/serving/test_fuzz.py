"""Whatever arrives, each request is answered at once, with an error of the right code or a right answer; and the server lives on.

FUZZ_EXAMPLES=1000 in the environment makes it a thousand requests of each kind; --hypothesis-show-statistics says how they were answered.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings, target
from hypothesis import strategies as st
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

from specbuild.errors import CancelledError, RequestError, TimedOutError
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import Client
from specbuild.triton.call import parse
from specbuild.triton.faults import from_wire
from specbuild.triton.fields import BY_NAME, FIGURES, INPUTS
from specbuild.triton.kinds import TEXT
from specbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow
SLOWEST = 1.0
"""Seconds until an answer."""
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "200"))
MANY = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

Given = dict[str, list[Any]]
"""Input → values."""
Raw = tuple[str, str, list[int], bytes]
"""A tensor on its way: name, datatype, shape and bytes."""
TEXTS = [b"", b"hi", b"{}", b"[1]", b'["a", [2]]', b"null", b'{"5": 1e999}', b'{"5": 3}', b"off", b"on", b"ngram", b"\xff\xfe"]
CHATS = [b'[{"role": "user", "content": "x"}]', b'[{"role": "user"}]', b"[[]]", b"[" * 9999]
STRINGS = st.sampled_from(TEXTS + CHATS) | st.binary(max_size=8)
WHOLE = st.sampled_from([0, 1, 1, 2, 3, 20, 2000, -1, 2**31 - 1]) | st.integers(-9, 99)
"""As a number of tokens, either more than fit or so few that they take no second."""
REAL = st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.5, -1.0, 3e38, float("inf"), float("nan")])


def values(name: str) -> st.SearchStrategy[list[Any]]:
    """What fits the type of the input ``name``, whatever it says."""
    kind = BY_NAME[name].kind if name in BY_NAME else TEXT
    one: dict[str, st.SearchStrategy[Any]] = {"BYTES": STRINGS, "BOOL": st.booleans(), "FP32": REAL}
    return st.lists(one.get(kind.wire, WHOLE), min_size=int(kind.dims == 1), max_size=1 if kind.dims == 1 else 3)


def fields() -> st.SearchStrategy[Given]:
    """A prompt nearly always, a right one mostly, a few others, and that the figures are wanted, since the seed is one of them."""
    right = st.sampled_from([{"text_input": [b"hi"]}] * 3 + [{"input_ids": [5, 6]}, {"chat": [CHATS[0]]}, {}])
    names = st.lists(st.sampled_from([field.name for field in INPUTS] + ["unknown"]), max_size=4, unique=True)
    others = names.flatmap(lambda names: st.fixed_dictionaries({name: values(name) for name in names}))
    short = {"sampling_param_max_tokens": [8]}
    return st.builds(lambda prompt, others: short | prompt | others | {FIGURES: [True]}, right, others)


def wire(name: str) -> str:
    return BY_NAME[name].kind.wire if name in BY_NAME else "BYTES"


def array(name: str, many: list[Any]) -> Any:
    return np.array(many, object) if wire(name) == "BYTES" else np.array(many).astype(triton_to_np_dtype(wire(name)))


def as_tensor(name: str, many: list[Any]) -> Raw:
    text = wire(name) == "BYTES"
    raw = b"".join(len(one).to_bytes(4, "little") + one for one in many) if text else array(name, many).tobytes()
    return name, wire(name), [len(many)], raw


@st.composite
def flawed(draw: st.DrawFn, given_tensors: list[Raw]) -> list[Raw]:
    """The same tensors but one, which contradicts itself or is there twice."""
    (name, datatype, shape, raw), *rest = given_tensors
    flaws: list[list[Raw]] = [
        [(name, draw(st.sampled_from(["BYTES", "FP32", "INT64", "NONE", ""])), shape, raw)],
        [(name, datatype, draw(st.sampled_from([[], [-1], [1, 1], [2], [2**40]])), raw)],
        [(name, datatype, shape, draw(st.sampled_from([raw[:-1], raw + b"\1", b"\xff\xff\xff\x7f" + raw])))],
        [given_tensors[0], given_tensors[0]],
    ]
    return draw(st.sampled_from(flaws)) + rest


@st.composite
def requests(draw: st.DrawFn) -> tuple[service_pb2.ModelInferRequest, Given, bool]:
    """A request, what it says, and whether Triton itself may refuse it."""
    given_fields = draw(fields())
    made = [as_tensor(name, many) for name, many in given_fields.items()]
    flaw = draw(st.sampled_from([False] * 5 + [True]))
    if flaw:
        made = draw(flawed(made))
    request = service_pb2.ModelInferRequest(model_name="specbuild", id=draw(st.sampled_from(["", "a\0b"])))
    for name, datatype, shape, raw in made:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    for name in draw(st.sampled_from([[]] * 9 + [["top_k"]])):
        request.parameters[name].int64_param = 3
    return request, given_fields, flaw or "unknown" in given_fields


@pytest.fixture(scope="module")
def generator(tiny_bundle: Path) -> Generator:
    """Of the bundle that the server has."""
    return Generator.open(tiny_bundle)


def answer_in_process(generator: Generator, given_fields: Given, seed: int) -> list[int]:
    arrays = {name: array(name, many) for name, many in given_fields.items()}
    call = parse(arrays, lambda text: generator.tokenizer.encode(text, special=False), wanted=(), max_bytes=2**20)
    return list(generator.generate([call.prompt], dataclasses.replace(call.params, seed=seed))[0].token_ids)


@pytest.fixture
def stub(url: str) -> Any:
    with grpc.insecure_channel(url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


OURS = RequestError | CancelledError | TimedOutError


@MANY
@given(drawn=requests())
def test_grpc(stub: Any, generator: Generator, drawn: tuple[service_pb2.ModelInferRequest, Given, bool]) -> None:
    request, given_fields, doubtful = drawn
    began = time.monotonic()
    responses = list(stub.ModelStreamInfer(iter([request]), timeout=20))
    assert took(began) < SLOWEST
    if message := responses[-1].error_message:
        error = from_wire(message)
        event("Triton's" if doubtful else type(error).__name__)
        assert (doubtful and not message.startswith(("internal", "busy"))) or isinstance(error, OURS), message
        return
    event("answered")
    results = [InferResult(response.infer_response) for response in responses]
    seed = next(int(found[0]) for result in reversed(results) if (found := result.as_numpy("seed")) is not None)
    tokens = [int(token) for result in results if (found := result.as_numpy("output_ids")) is not None for token in found]
    assert tokens == answer_in_process(generator, given_fields, seed)


def as_json(given_fields: Given) -> dict[str, Any]:
    """One value as it is, several as a list."""
    plain = {name: [one.decode() if isinstance(one, bytes) else one for one in many] for name, many in given_fields.items()}
    return {name: many[0] if len(many) == 1 else many for name, many in plain.items()}


def characters(given_fields: Given) -> Given:
    """The same with text that JSON can hold."""
    return {
        name: [one.decode("latin-1").encode() if isinstance(one, bytes) else one for one in many] for name, many in given_fields.items()
    }


def broken(body: str) -> st.SearchStrategy[str]:
    return st.sampled_from([body] * 8 + [body[:-1], body + "}", "[" * 9999, f"[{body}]", "null", ""])


@MANY
@given(given_fields=fields().map(characters), data=st.data())
def test_http(server: TritonServer, generator: Generator, given_fields: Given, data: st.DataObject) -> None:
    body = data.draw(broken(json.dumps(as_json(given_fields))))
    began = time.monotonic()
    status, answer = post(f"http://{server.ports.host}:{server.ports.http}/v2/models/specbuild/generate", body)
    assert took(began) < SLOWEST
    event(f"status {status}")
    said = json.loads(answer)
    if status == 200 and "error" in said:
        # Triton's: this route takes one response, and its status is sent with the first.
        assert given_fields["streaming"] == [True]
        assert said["error"].startswith("generate expects model to produce exactly 1 response")
    elif status == 200:
        assert np.atleast_1d(said["output_ids"]).tolist() == answer_in_process(generator, given_fields, said["seed"])
    else:
        # A body that is no JSON, or not the right one, is the server's fault in Triton's eyes.
        assert status == 400 or (status == 500 and not said["error"].startswith("internal")), said


VALUES = st.none() | st.booleans() | WHOLE | REAL | STRINGS.map(lambda text: text.decode("latin-1")) | st.lists(WHOLE, max_size=3)
CHAT = {"model": "specbuild", "messages": [{"role": "user", "content": "hi"}]}
OPENAI = st.sampled_from(
    [*CHAT, *["temperature", "top_p", "n", "seed", "stop", "max_tokens", "logprobs", "top_logprobs", "stream", "unknown"]]
)


@MANY
@given(body=st.dictionaries(OPENAI, VALUES, max_size=3).map(lambda fields: json.dumps({"max_tokens": 5} | CHAT | fields)).flatmap(broken))
def test_openai(address: str, body: str) -> None:
    began = time.monotonic()
    status, answer = post(f"{address}/v1/chat/completions", body)
    assert took(began) < SLOWEST
    event(f"status {status}")
    # 429: the many choices of a request before, refused since, are still being taken back.
    assert status in (200, 400, 404, 429)
    assert status == 200 or json.loads(answer)["error"].keys() == {"message", "type", "param", "code"}


def took(began: float) -> float:
    """Seconds since; Hypothesis seeks what takes longer, and reports the longest."""
    seconds = time.monotonic() - began
    target(seconds, label="seconds")
    return seconds


def post(url: str, body: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body.encode()), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_the_server_lives_on(url: str) -> None:
    assert Client(url).generate("a", SamplingParams(temperature=0, max_tokens=3)).tokens
