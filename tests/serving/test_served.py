"""A real server, real gRPC and HTTP: the same text as in process, errors of the right kind, and nothing left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbuild.cli.main import run
from specbuild.errors import BusyError, RequestError, SpecbuildError, TimedOutError
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import AsyncClient, Client
from specbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
PROMPTS = ["the quick brown fox", "Grüße aus Köln", "a", "1 2 3 1 2 3 1 2 3", "x" * 200]
GREEDY = SamplingParams(temperature=0, max_tokens=40)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=40, seed=11, top_p=0.95)
ENDLESS = SamplingParams(seed=1, max_tokens=900, ignore_eos=True, speculation="off", logprobs=20)
"""As long and as slow as the tiny model can be: about a second."""


@pytest.fixture(scope="module")
def generator(tiny_bundle: Path) -> Generator:
    return Generator.open(tiny_bundle, threads=1, batch=1)


def post(server: TritonServer, what: str, body: Any) -> tuple[int, str]:
    """Status and body of the answer over HTTP."""
    url = f"http://{server.ports.host}:{server.ports.http}/v2/models/specbuild/{what}"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(server: TritonServer) -> dict[str, float]:
    """Our samples on the metrics port."""
    with urllib.request.urlopen(f"http://{server.ports.host}:{server.ports.metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    samples = [re.fullmatch(r"(specbuild_[a-z_]+\{[^}]*\}) ([-+.e0-9]+)", line) for line in lines if line.startswith("specbuild_")]
    assert all(samples), "every line is a name, labels and a number"
    return {match[1]: float(match[2]) for match in samples if match}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def settled(server: TritonServer) -> dict[str, float]:
    """Once what was asked before has been counted: the figures are brought up to date twice a second, and only the turns go on."""
    before: dict[str, float] = {}
    while before != (now := {name: value for name, value in metrics(server).items() if "_turns{" not in name}):
        before = now
        time.sleep(1.2)
    return now


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_that_of_the_process(url: str, generator: Generator, params: SamplingParams) -> None:
    client = Client(url)
    for prompt, wanted in zip(PROMPTS, generator.generate(PROMPTS, params), strict=True):
        whole = client.generate(prompt, params)
        with client.stream(prompt, params) as stream:
            chunks = list(stream)
        assert (whole.text, whole.tokens, whole.finish_reason) == (wanted.text, wanted.token_ids, wanted.finish_reason)
        assert "".join(chunk.text for chunk in chunks) == stream.answer.text == wanted.text
        assert stream.answer.tokens == wanted.token_ids


def test_many_at_a_time_are_not_mixed_up(url: str, generator: Generator) -> None:
    prompts = [f"{index} {PROMPTS[index % len(PROMPTS)]}" for index in range(12)]
    wanted = [completion.token_ids for completion in generator.generate(prompts, SAMPLED)]

    async def ask() -> list[tuple[int, ...]]:
        free = asyncio.Semaphore(6)
        async with AsyncClient(url) as client:

            async def one(prompt: str) -> tuple[int, ...]:
                async with free, client.stream(prompt, SAMPLED) as stream:
                    return tuple([token async for chunk in stream for token in chunk.tokens])

            return await asyncio.gather(*(one(prompt) for prompt in prompts))

    assert asyncio.run(ask()) == wanted


def test_messages_and_token_ids(url: str, generator: Generator) -> None:
    client = Client(url)
    for prompt in ([{"role": "user", "content": "Hi"}], [1, 2, 3]):
        assert client.generate(prompt, GREEDY).tokens == generator.generate([prompt], GREEDY)[0].token_ids


def test_logprobs_and_figures(url: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=2)
    answer = Client(url).generate("abc", params)
    with Client(url).stream("abc", params) as stream:
        chunks = list(stream)
    assert all([one["token"] for one in chunk.logprobs] == list(chunk.tokens) for chunk in chunks)
    assert stream.answer.logprobs == answer.logprobs
    assert [one["token"] for one in answer.logprobs] == list(answer.tokens)
    assert all(len(one["top"]) == 2 and one["top"][0][0] == one["token"] for one in answer.logprobs)
    assert answer.figures["emitted_tokens"] == len(answer.tokens)
    assert len(answer.figures["per_step_accepted"]) == len(answer.figures["per_step_drafted"]) == answer.figures["num_spec_steps"]
    assert sum(answer.figures["per_step_drafted"]) == answer.figures["total_draft_tokens"]
    assert sum(answer.figures["per_step_accepted"]) == answer.figures["total_accepted_draft_tokens"]


def test_what_ended_it(url: str, generator: Generator) -> None:
    [plain] = generator.generate(["abc"], GREEDY)
    stop, token = plain.text[5:8], plain.token_ids[5]
    endings: list[tuple[dict[str, Any], tuple[str, str | None]]] = [
        ({"stop": [stop]}, ("stop", stop)),
        ({"stop_token_ids": [token]}, ("stop", str(token))),
        ({}, ("stop", None)),
        ({"max_tokens": 3}, ("length", None)),
    ]
    for ending, reason in endings:
        answer = Client(url).generate("abc", dataclasses.replace(GREEDY, **ending))
        assert (answer.finish_reason, answer.stop_reason) == reason


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([10**6], GREEDY, "token id 1000000, but the vocabulary ends at"),
        ([], GREEDY, "the prompt has no tokens"),
        ("a" * 10_000_000, GREEDY, "text_input has 10000000 bytes"),
        ("a" * 5000, GREEDY, "the prompt has 5000 tokens"),
        ("a", SamplingParams(max_tokens=10_000), "lower max_tokens to"),
        ("a", SamplingParams(speculation="nothing"), "nothing"),
        ([{"role": "user", "content": ""}, {"role": "user"}], GREEDY, r"chat\[1\]"),
    ],
)
def test_bad_requests_are_refused_at_once(url: str, prompt: Any, params: SamplingParams, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(RequestError, match=message):
        Client(url).generate(prompt, params)
    assert time.monotonic() - began < 1


def test_a_deadline(url: str) -> None:
    with pytest.raises(TimedOutError):
        Client(url).generate("a", ENDLESS, timeout=0.05)


def test_leaving_the_loop_frees_the_slot(server: TritonServer, url: str) -> None:
    cancelled = 'specbuild_requests_cancelled{model="specbuild"}'
    before = metrics(server)[cancelled]
    with Client(url).stream("a", ENDLESS) as stream:
        next(stream)
    until(lambda: metrics(server)[cancelled] == before + 1)
    until(lambda: metrics(server)['specbuild_running_requests{model="specbuild"}'] == 0)


def test_a_full_queue_answers_busy(server: TritonServer, url: str) -> None:
    async def ask() -> list[Any]:
        async with AsyncClient(url) as client:
            asked = [client.generate("a", SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)) for _ in range(32)]
            return await asyncio.gather(*asked, return_exceptions=True)

    counted = 'specbuild_requests_busy{model="specbuild"}'
    before = metrics(server)[counted]
    answers = asyncio.run(ask())
    busy = [answer for answer in answers if isinstance(answer, BusyError)]
    served = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert busy
    assert len(busy) + len(served) == 32
    until(lambda: metrics(server)[counted] == before + len(busy))
    assert len({answer.tokens for answer in served}) == 1


def test_counters_are_the_sum_of_the_figures(server: TritonServer, url: str) -> None:
    names = {
        "emitted_tokens": "emitted_tokens",
        "prompt_tokens": "prompt_tokens",
        "spec_decode_num_draft_tokens": "total_draft_tokens",
        "spec_decode_num_accepted_tokens": "total_accepted_draft_tokens",
        "time_to_first_token_seconds_count": None,
    }
    before = settled(server)
    answers = [Client(url).generate(prompt, GREEDY) for prompt in PROMPTS]
    for prompt in ("a" * 10_000_000, "a" * 5000):  # found out by the model's reader, and by the service
        with pytest.raises(RequestError):
            Client(url).generate(prompt, GREEDY)

    def moved() -> dict[str, float]:
        now = metrics(server)
        return {name: now[f'specbuild_{name}{{model="specbuild"}}'] - before[f'specbuild_{name}{{model="specbuild"}}'] for name in wanted}

    wanted = {name: sum(answer.figures[figure] if figure else 1 for answer in answers) for name, figure in names.items()}
    wanted |= {"requests": len(PROMPTS), "requests_completed": len(PROMPTS), "requests_rejected": 2, "requests_busy": 0}
    until(lambda: moved() == wanted)


def test_http(server: TritonServer, generator: Generator) -> None:
    wanted = generator.generate(["the fox"], SamplingParams(temperature=0, max_tokens=6))[0]
    body = {"text_input": "the fox", "sampling_param_temperature": 0, "sampling_param_max_tokens": 6}
    status, answer = post(server, "generate", body | {"return_finish_reason": True})
    assert (status, json.loads(answer)["text_output"], json.loads(answer)["finish_reason"]) == (200, wanted.text, "length")
    status, answer = post(server, "generate_stream", body | {"streaming": True})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line]
    assert (status, "".join(event["text_output"] for event in events)) == (200, wanted.text)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"text_input": "x", "sampling_param_temprature": 1}, 400, "Did you mean 'sampling_param_temperature'"),
        ({"text_input": "x", "sampling_param_temperature": -1}, 400, "temperature is -1.0"),
        ({"text_input": ["x", "y"]}, 400, "text_input has 2 strings"),
        ({}, 400, "exactly one of text_input"),
        (b'{"text_input":"\xff"}', 400, "not UTF-8"),
        ({"text_input": "x", "sampling_param_top_k": "three"}, 500, "JSON"),
        ({"text_input": "x", "timeout_ms": 1, "sampling_param_max_tokens": 900, "speculation": "off"}, 400, "deadline exceeded: "),
        (b"{{", 500, "JSON"),
    ],
)
def test_http_refusals(server: TritonServer, body: Any, status: int, message: str) -> None:
    """What Triton itself cannot parse it answers with 500; what reaches the model is told apart."""
    seen, answer = post(server, "generate", body)
    assert seen == status
    assert message in json.loads(answer)["error"]


def test_the_example(url: str, generator: Generator) -> None:
    """A plain tritonclient script with llmapi's names."""
    command = [sys.executable, str(ROOT / "examples" / "llmapi_client.py"), "the fox", url]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == generator.generate(["the fox"], SamplingParams(temperature=0, max_tokens=64))[0].text


def test_client_command(url: str, generator: Generator, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["client", "the fox", "--raw", "--url", url, "--max-tokens", "6"]) == 0
    shown = capsys.readouterr()
    assert shown.out == generator.generate(["the fox"], SamplingParams(temperature=0, max_tokens=6))[0].text + "\n"
    assert "6 tokens at" in shown.err
    assert run(["client", "the fox", "--url", url, "--max-tokens", "100000"]) == 2
    assert "max_tokens" in capsys.readouterr().err


def test_bench_command(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a b c"}\n{"prompt": "d e f"}\n' + json.dumps({"prompt": "x" * 5000}))
    arguments = ["triton", "bench", "--prompts", str(file), "--url", url, "--concurrency", "1,2", "--max-tokens", "5"]
    assert run([*arguments, "--json"]) == 0
    loads = json.loads(capsys.readouterr().out)
    assert [(load["concurrency"], load["requests"], load["errors"]) for load in loads] == [
        (1, 2, {"invalid argument": 1}),
        (2, 2, {"invalid argument": 1}),
    ]
    assert all(load["tokens_per_second"] > 0 and load["mean_acceptance_length"] >= 1 for load in loads)
    assert all(sum(load["draft_lens"].values()) == pytest.approx(1) for load in loads)
    assert run(arguments) == 0
    assert "invalid argument: 1" in capsys.readouterr().out
    assert run([*arguments, "--url", "127.0.0.1:1"]) == 1, "a server that is not there is no load of errors"
    assert "the server broke off" in capsys.readouterr().err


def test_an_unknown_model_is_no_crash(url: str) -> None:
    with pytest.raises(SpecbuildError, match="nobody"):
        Client(url, model="nobody").generate("a", GREEDY)
    assert not Client(url, model="nobody").ready()
    assert Client(url).ready()
