"""Answers and errors in OpenAI's shapes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from specbuild.errors import BuildError, BusyError, CancelledError, RequestError, ServerError, SpecbuildError, TimedOutError
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton.openai import errors
from specbuild.triton.openai.answers import Writer
from specbuild.triton.openai.events import Emit, Events
from specbuild.triton.openai.forms import ChatForm, CompletionForm, Form, Object
from specbuild.triton.openai.job import Job, together
from specbuild.triton.wire import Answer, Chunk

PIECES = [b"A", b" \xe2\x82", b"\xac", b"!"]
"""The text is "A €!"."""


def token_bytes(token: int) -> bytes:
    return PIECES[token]


def logprobs(*tokens: int) -> tuple[Object, ...]:
    return tuple({"token": token, "logprob": -0.5 - token, "top": [[3, -0.25]]} for token in tokens)


def answer(drafted: int = 5, accepted: int = 2, reused: int = 1) -> Answer:
    figures = {"total_draft_tokens": drafted, "total_accepted_draft_tokens": accepted, "reused_tokens": reused, "seed": 7}
    return Answer("A €!", (0, 1, 2, 3), "stop", "x", logprobs(0, 1, 2, 3), figures)


def writer(form: Form, *prompts: tuple[int, ...], n: int = 1) -> Writer:
    return Writer(form, Job(tuple((prompt, SamplingParams()) for prompt in prompts for _ in range(n)), n), "specbuild", "bundle-1")


def test_a_whole_chat() -> None:
    read = ChatCompletion.model_validate(writer(ChatForm(token_bytes), (1, 2, 3)).whole([answer()]), strict=True)
    assert (read.id.partition("-")[0], read.model, read.system_fingerprint) == ("chatcmpl", "specbuild", "bundle-1")
    choice = read.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("A €!", "stop")
    assert (choice.model_extra or {})["specbuild"]["stop_reason"] == "x"
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert [(one.token, bytes(one.bytes or ()), one.logprob) for one in content] == [
        ("A", b"A", -0.5),
        ("bytes:\\x20\\xe2\\x82", b" \xe2\x82", -1.5),
        ("bytes:\\xac", b"\xac", -2.5),
        ("!", b"!", -3.5),
    ]
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("!", -0.25)]


def test_chunks_of_a_chat() -> None:
    write = writer(ChatForm(token_bytes), (1, 2, 3))
    parts = [write.part(0, Chunk("A", (0,))), write.part(0, Chunk("", (1,))), write.part(0, Chunk(" €!", (2, 3))), write.part(0, answer())]
    assert parts[1] is None
    read = [ChatCompletionChunk.model_validate(part, strict=True).choices[0] for part in parts if part is not None]
    assert [(one.delta.role, one.delta.content, one.finish_reason) for one in read] == [
        ("assistant", "A", None),
        (None, " €!", None),
        (None, None, "stop"),
    ]
    assert write.used([answer()])["choices"] == []


def test_offsets_of_a_completion_go_on_from_chunk_to_chunk() -> None:
    write = writer(CompletionForm(token_bytes), (1, 2, 3))
    chunks = [Chunk("A", (0, 1), logprobs(0, 1)), Chunk(" €!", (2, 3), logprobs(2, 3))]
    read = [part["choices"][0]["logprobs"] for chunk in chunks if (part := write.part(0, chunk))]
    assert [one["text_offset"] for one in read] == [[0, 1], [2, 3]]
    assert read[0]["tokens"] == ["A", "bytes:\\x20\\xe2\\x82"]
    assert read[0]["top_logprobs"] == [{"!": -0.25, "A": -0.5}, {"!": -0.25, "bytes:\\x20\\xe2\\x82": -1.5}]
    assert Completion.model_validate(writer(CompletionForm(token_bytes), (1,)).whole([answer()])).choices[0].text == "A €!"


def test_usage_counts_a_prompt_once_and_a_text_each_time() -> None:
    answers = [answer(reused=1), answer(reused=3), answer(reused=0), answer(reused=2)]
    usage = writer(CompletionForm(token_bytes), (1, 2, 3), (4, 5), n=2).whole(answers)["usage"]
    assert usage == {
        "prompt_tokens": 5,
        "completion_tokens": 16,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"accepted_prediction_tokens": 8, "rejected_prediction_tokens": 12},
    }


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("x"), 400, "invalid_request_error", None),
        (errors.RefusedError("x", status=404, code="model_not_found"), 404, "invalid_request_error", "model_not_found"),
        (BusyError("x"), 429, "rate_limit_error", "rate_limit_exceeded"),
        (TimedOutError("x"), 504, "timeout_error", "deadline_exceeded"),
        (CancelledError("x"), 503, "server_error", "cancelled"),
        (ServerError("x"), 503, "server_error", "unavailable"),
        (BuildError("x"), 500, "server_error", None),
    ],
)
def test_errors(error: SpecbuildError, status: int, kind: str, code: str | None) -> None:
    assert errors.status(error) == status
    assert errors.body(error) == {"error": {"message": "x", "type": kind, "param": None, "code": code}}


def sent(produce: Any) -> list[Any]:
    """What an answer of events sends; its client stays."""
    messages: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(Events(produce)({"type": "http"}, receive, send))
    return messages


def test_events_end_with_done() -> None:
    async def produce(emit: Emit) -> None:
        await together(emit({"n": n}) for n in range(3))

    begin, *events, end = sent(produce)
    assert (begin["status"], dict(begin["headers"])[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    bodies = [event["body"].decode() for event in events]
    assert sorted(bodies[:3]) == [f'data: {{"n": {n}}}\n\n' for n in range(3)]
    assert bodies[3:] == ["data: [DONE]\n\n"]
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}


def test_an_error_after_the_first_event_is_the_last() -> None:
    async def produce(emit: Emit) -> None:
        await emit({})
        raise ServerError("broke off")

    *_, last, _ = sent(produce)
    assert json.loads(last["body"].removeprefix(b"data: "))["error"]["message"] == "broke off"


def test_an_error_before_it_is_an_answer_of_its_own() -> None:
    async def produce(emit: Emit) -> None:
        raise BusyError("full")

    with pytest.raises(BusyError):
        sent(produce)


def test_the_first_error_ends_what_runs_beside_it() -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("long")

    async def short() -> None:
        await asyncio.sleep(0)
        raise BusyError("full")

    with pytest.raises(BusyError):
        asyncio.run(_both(long(), short()))
    assert ended == ["long"]


async def _both(*work: Any) -> None:
    await together(work)
