"""OpenAI's own client asks the door, which asks a real Triton server: the same text as over gRPC, and nothing left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import Client

pytestmark = pytest.mark.slow
CHAT: Any = [{"role": "user", "content": "the quick brown fox"}]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "max_tokens": 40}


@pytest.mark.parametrize("params", [{"temperature": 0, "max_tokens": 40}, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_that_of_grpc(client: OpenAI, url: str, params: dict[str, Any]) -> None:
    wanted = Client(url).generate(CHAT, SamplingParams(**params))
    whole = client.chat.completions.create(model="specbuild", messages=CHAT, **params)
    chunks = list(client.chat.completions.create(model="specbuild", messages=CHAT, stream=True, **params))
    (choice,) = whole.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", wanted.text, wanted.finish_reason)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted.text
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [wanted.finish_reason]
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > 2
    legacy = client.completions.create(model="specbuild", prompt="abc", **params)
    assert legacy.choices[0].text == Client(url).generate("abc", SamplingParams(**params)).text


def test_usage_and_figures(client: OpenAI, url: str) -> None:
    """With a draft length that is given: one that the server chooses differs from time to time."""
    wanted = Client(url).generate(CHAT, SamplingParams(temperature=0, max_tokens=40, draft_len=2)).figures
    asked: dict[str, Any] = {"model": "specbuild", "messages": CHAT, "temperature": 0, "max_tokens": 40}
    asked |= {"extra_body": {"specbuild": {"draft_len": 2}}}
    whole = client.chat.completions.create(**asked)
    *_, finish, last = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
    assert last.choices == []
    for usage in (whole.usage, last.usage):
        assert usage is not None
        details = usage.completion_tokens_details
        assert details is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (wanted["prompt_tokens"], 40)
        assert usage.total_tokens == wanted["prompt_tokens"] + 40
        assert details.accepted_prediction_tokens == wanted["total_accepted_draft_tokens"]
        assert details.rejected_prediction_tokens == wanted["total_draft_tokens"] - wanted["total_accepted_draft_tokens"]
    for choice in (whole.choices[0], finish.choices[0]):
        figures = (choice.model_extra or {})["specbuild"]
        assert figures["mean_acceptance_length"] == wanted["mean_acceptance_length"] > 1
        assert sum(figures["per_step_accepted"]) == wanted["total_accepted_draft_tokens"]
        assert figures["stop_reason"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_choice_i_has_the_seed_plus_i(client: OpenAI, stream: bool) -> None:
    def alone(seed: int) -> str | None:
        answer = client.chat.completions.create(model="specbuild", messages=CHAT, temperature=1.5, max_tokens=12, seed=seed)
        return answer.choices[0].message.content

    asked: dict[str, Any] = {"model": "specbuild", "messages": CHAT, "temperature": 1.5, "max_tokens": 12, "seed": 7, "n": 3}
    if stream:
        texts = dict.fromkeys(range(3), "")
        for chunk in client.chat.completions.create(stream=True, **asked):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        seen: list[str | None] = [texts[index] for index in range(3)]
    else:
        answer = client.chat.completions.create(**asked)
        seen = [choice.message.content for choice in answer.choices]
        assert [(choice.model_extra or {})["specbuild"]["seed"] for choice in answer.choices] == [7, 8, 9]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 36
    assert seen == [alone(7), alone(8), alone(9)]
    assert len(set(seen)) == 3


def test_prompts_of_a_completion(client: OpenAI, url: str) -> None:
    """Texts, token ids, several of them with several choices each: prompt by prompt."""
    greedy = SamplingParams(temperature=0, max_tokens=16)
    wanted = {prompt: Client(url).generate(prompt, greedy).text for prompt in ("abc", "xyz")}
    answer = client.completions.create(model="specbuild", prompt=["abc", "xyz"], temperature=0, n=2)
    assert [choice.text for choice in answer.choices] == [wanted["abc"]] * 2 + [wanted["xyz"]] * 2
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 6
    ids = Client(url).generate([1, 2, 3], greedy).text
    assert client.completions.create(model="specbuild", prompt=[1, 2, 3], temperature=0).choices[0].text == ids
    several = client.completions.create(model="specbuild", prompt=[[1, 2, 3], [1, 2, 3]], temperature=0, stream=True)
    texts = ["", ""]
    for chunk in several:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [ids, ids]


def test_stop(client: OpenAI) -> None:
    text = client.completions.create(model="specbuild", prompt="abc", max_tokens=40, seed=3, temperature=0.9).choices[0].text
    for stop in (text[10:12], ["nowhere to be found", text[10:12]]):
        choice = client.completions.create(model="specbuild", prompt="abc", max_tokens=40, seed=3, temperature=0.9, stop=stop).choices[0]
        assert (choice.text, choice.finish_reason) == (text[: text.index(text[10:12])], "stop")
        assert (choice.model_extra or {})["specbuild"]["stop_reason"] == text[10:12]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: OpenAI, url: str, stream: bool) -> None:
    params: dict[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 30}
    wanted = Client(url).generate(CHAT, SamplingParams(**params, logprobs=2))
    asked: dict[str, Any] = {"model": "specbuild", "messages": CHAT, "logprobs": True, "top_logprobs": 2, **params}
    if stream:
        parts = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **asked)]
        content = [one for part in parts if part.logprobs for one in part.logprobs.content or ()]
        text = "".join(part.delta.content or "" for part in parts)
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.logprobs is not None
        content, text = choice.logprobs.content or [], choice.message.content or ""
    assert [one.logprob for one in content] == [one["logprob"] for one in wanted.logprobs]
    assert all(
        [top.logprob for top in one.top_logprobs] == [pair[1] for pair in ours["top"]]
        for one, ours in zip(content, wanted.logprobs, strict=True)
    )
    assert b"".join(bytes(one.bytes or ()) for one in content).decode(errors="replace") == text == wanted.text


def test_legacy_logprobs(client: OpenAI, url: str) -> None:
    wanted = Client(url).generate("abc", SamplingParams(temperature=0, max_tokens=16, logprobs=3))
    logprobs = client.completions.create(model="specbuild", prompt="abc", temperature=0, logprobs=3).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == [one["logprob"] for one in wanted.logprobs]
    assert [next(iter(top.values())) for top in logprobs.top_logprobs or ()] == logprobs.token_logprobs
    assert logprobs.text_offset == sorted(logprobs.text_offset or ())
    assert len(logprobs.tokens or ()) == 16


def test_speculation_is_for_the_request_to_choose(client: OpenAI, url: str) -> None:
    def ask(**extension: Any) -> tuple[str | None, int]:
        answer = client.chat.completions.create(
            model="specbuild", messages=CHAT, temperature=0, max_tokens=24, extra_body={"specbuild": extension}
        )
        assert answer.usage is not None
        details = answer.usage.completion_tokens_details
        assert details is not None
        return answer.choices[0].message.content, (details.accepted_prediction_tokens or 0) + (details.rejected_prediction_tokens or 0)

    off, drafted = ask(speculation="off")
    assert drafted == 0
    text, drafted = ask(speculation="on", draft_len=2, priority=-1, timeout_ms=60_000)
    assert text == off
    assert drafted > 0
    assert ask(top_k=1, repetition_penalty=1.0, min_p=0.0)[0] == off
    third = Client(url).generate(CHAT, SamplingParams(temperature=0, max_tokens=3)).tokens[2]
    assert len(ask(stop_token_ids=[third])[0] or "") < len(off or "")


def test_without_a_limit_a_chat_goes_on_to_the_end_of_the_sequence(client: OpenAI, address: str) -> None:
    answer = client.chat.completions.create(model="specbuild", messages=CHAT, temperature=0, extra_body={"specbuild": {"ignore_eos": True}})
    assert answer.usage is not None
    assert (answer.usage.total_tokens, answer.choices[0].finish_reason) == (1024, "length")


def test_models(client: OpenAI, tiny_bundle: Path) -> None:
    assert [model.id for model in client.models.list()] == ["specbuild"]
    for name in ("specbuild", tiny_bundle.name, "tiny"):
        assert client.models.retrieve(name).id == name
        assert client.completions.create(model=name, prompt="a", max_tokens=1).model == name
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-5' here; there is: specbuild"):
        client.models.retrieve("gpt-5")


def test_the_async_client_streams_several_at_a_time(address: str, url: str) -> None:
    prompts = [f"{index} times" for index in range(6)]
    wanted = [Client(url).generate(prompt, SamplingParams(**SAMPLED)).text for prompt in prompts]

    async def one(client: AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(model="specbuild", prompt=prompt, stream=True, **SAMPLED)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    assert asyncio.run(ask()) == wanted
