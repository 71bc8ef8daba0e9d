"""What goes wrong behind OpenAI's door, or in front of it: errors of the right kind, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from specbuild.bundle import Bundle
from specbuild.errors import EnvironmentLacksError
from specbuild.triton.openai.app import MAX_BODY, Endpoints
from specbuild.triton.openai.door import Door
from specbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow
CHAT: Any = [{"role": "user", "content": "the quick brown fox"}]
ENDLESS: dict[str, Any] = {
    "max_tokens": 900,
    "seed": 1,
    "logprobs": True,
    "top_logprobs": 20,
    "extra_body": {"specbuild": {"ignore_eos": True, "speculation": "off"}},
}
"""As long and as slow as the tiny model can be: about a second."""


def metric(server: TritonServer, name: str) -> float:
    """As the metrics port has it."""
    with urllib.request.urlopen(f"http://{server.ports.host}:{server.ports.metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"specbuild_{name}{{")).split()[-1])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"model": "nobody"}, "there is no model 'nobody'", "model"),
        ({"temperature": -1}, "temperature is -1.0, but must be", None),
        ({"max_tokens": 5000}, "exceed the 1024 that a sequence holds", None),
        ({"logit_bias": {"5000": 1}}, "logit_bias has token id 5000, but the vocabulary ends at", None),
        ({"extra_body": {"temprature": 1}}, "Did you mean 'temperature'", "temprature"),
        ({"extra_body": {"top_k": 1}}, "'top_k' belongs into 'specbuild'", "top_k"),
        ({"extra_body": {"specbuild": {"speculation": "nothing"}}}, "nothing", None),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is", "tools"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "the prompt has 50", None),
    ],
)
def test_refusals(client: OpenAI, fields: dict[str, Any], message: str, param: str | None) -> None:
    for stream in (False, True):
        asked: dict[str, Any] = {"model": "specbuild", "messages": CHAT} | fields
        with pytest.raises((openai.BadRequestError, openai.NotFoundError), match=message) as refused:
            client.chat.completions.create(stream=stream, **asked)
        assert (refused.value.type, refused.value.param) == ("invalid_request_error", param)


def test_a_deadline(client: OpenAI) -> None:
    late: dict[str, Any] = ENDLESS | {"extra_body": {"specbuild": {"timeout_ms": 50, "ignore_eos": True, "speculation": "off"}}}
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model="specbuild", messages=CHAT, **late)
    assert (refused.value.status_code, refused.value.code) == (504, "deadline_exceeded")


def test_an_error_in_mid_stream_is_an_event(client: OpenAI, server: TritonServer) -> None:
    late: dict[str, Any] = ENDLESS | {"extra_body": {"specbuild": {"timeout_ms": 300, "ignore_eos": True, "speculation": "off"}}}
    stream = client.chat.completions.create(model="specbuild", messages=CHAT, stream=True, **late)
    next(iter(stream))
    with pytest.raises(openai.APIError, match=r"not done 0\.3 s after it was asked for"):
        for _ in stream:
            pass


def test_a_full_queue_answers_busy_and_says_when_to_return(address: str, server: TritonServer) -> None:
    async def ask() -> list[Any]:
        async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client:
            asked = [
                client.completions.create(
                    model="specbuild", prompt="a", max_tokens=300, temperature=0, extra_body={"specbuild": {"ignore_eos": True}}
                )
                for _ in range(32)
            ]
            return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(ask())
    busy = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
    served = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert busy
    assert busy[0].response.headers["retry-after"] == "1"
    assert len(busy) + len(served) == 32
    assert len({answer.choices[0].text for answer in served}) == 1


@pytest.mark.parametrize(("stream", "n"), [(True, 1), (True, 3), (False, 6)])
def test_a_client_that_leaves_frees_its_slots(client: OpenAI, server: TritonServer, stream: bool, n: int) -> None:
    """Those that are not streamed are many: one alone may be done before the server asks whether its client is there."""
    before = metric(server, "requests_cancelled")
    asked: dict[str, Any] = {"model": "specbuild", "messages": CHAT, "n": n, **ENDLESS}
    if stream:
        with client.chat.completions.create(stream=True, **asked) as events:
            next(iter(events))
    else:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.2).chat.completions.create(**asked)
    until(lambda: metric(server, "requests_cancelled") == before + n)
    until(lambda: metric(server, "running_requests") == 0)


def post(address: str, body: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/completions", data=body), timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_bodies_that_are_no_request(address: str) -> None:
    status, answer = post(address, b'{"model": "specbuild", "prompt": "x", "temperature": NaN}')
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert post(address, b'{"pad": "' + b"x" * MAX_BODY + b'"}')[0] == 413


def test_health(address: str) -> None:
    with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
        assert answer.status == 200


def test_a_taken_port(door: Door, tiny_bundle: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="cannot be listened on"):
        Door(Endpoints(Bundle.open(tiny_bundle), "127.0.0.1:1").app(), "127.0.0.1", door.port)
