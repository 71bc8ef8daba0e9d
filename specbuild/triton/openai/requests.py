"""Requests as OpenAI's API has them, and what the server is asked for each."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from specbuild.runtime.sampling import MAX_LOGPROBS, SEED_BITS, SamplingParams
from specbuild.runtime.tokenizer import Tokenizer

from ..backend import LONGEST_TOKEN
from .bodies import SHOWN, Body, wrong
from .errors import RefusedError
from .job import Job

CHOICES = 128
"""The most of one request: each is a request to the server."""
SEEDS = 2**SEED_BITS
DIRECT = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "stop")
"""Fields whose name and value are those of ``SamplingParams``, which checks their bounds."""


class Extension(Body):
    """The field ``specbuild``: what OpenAI's API has no name for. All but the last two are those of ``SamplingParams``."""

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    bad_words: list[list[int]] | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    speculation: str | None = None
    draft_len: int | None = None
    tree_budget: int | None = None
    share_history: bool | None = None
    tenant: str | None = None
    priority: int = 0
    timeout_ms: int | None = Field(default=None, ge=1)

    @property
    def sampling(self) -> dict[str, Any]:
        """Of ``SamplingParams``, what was given; speculation that is ``on`` is the default, the recipe's."""
        given = self.model_dump(exclude_unset=True, exclude={"priority", "timeout_ms"})
        return {name: value for name, value in given.items() if (name, value) != ("speculation", "on")}


class StreamOptions(Body):
    """How a stream ends."""

    IGNORED = frozenset({"include_obfuscation"})
    include_usage: bool = False


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _by_token(biases: dict[str, float]) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise wrong(f"the key {key!r:.{SHOWN}} is no token id")
    return {int(key): bias for key, bias in biases.items()}


class Request(Body):
    """What both kinds of requests have."""

    IGNORED = frozenset(
        {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "parallel_tool_calls"}
    )
    ELSEWHERE = dict.fromkeys(Extension.model_fields, "specbuild")
    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Annotated[dict[str, float], AfterValidator(_by_token)] = Field(default_factory=dict)
    stop: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list)
    seed: int | None = Field(default=None, ge=-SEEDS // 2, lt=SEEDS)
    n: int = Field(1, ge=1, le=CHOICES)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    specbuild: Extension = Extension()

    def job(self, tokenizer: Tokenizer, max_seq_len: int) -> Job:
        """What the server is to do.

        Choice i of a prompt has the seed ``seed + i`` (modulo 2⁶⁴): asked for alone with that seed, it is the same text.

        Raises:
            RequestError: fields contradict each other or are out of bounds, or the prompt cannot be one.
        """
        prompts = self._prompts(tokenizer, max_seq_len * LONGEST_TOKEN)
        if len(prompts) * self.n > CHOICES:
            raise RefusedError(f"{len(prompts)} prompts with n {self.n} are more than the {CHOICES} choices of one request", param="n")
        # Where the request has no limit, all that fits; what itself does not fit the server refuses.
        limit = self._limit if self._limit is not None else max(1, max_seq_len - len(prompts[0]))
        direct = {name: getattr(self, name) for name in DIRECT}
        params = SamplingParams(**direct, **self.specbuild.sampling, max_tokens=limit, logprobs=self._top)
        seeds = [None if self.seed is None else (self.seed + i) % SEEDS for i in range(self.n)]
        each = [dataclasses.replace(params, seed=seed) for seed in seeds]
        milliseconds = self.specbuild.timeout_ms
        return Job(
            choices=tuple((tuple(prompt), one) for prompt in prompts for one in each),
            n=self.n,
            priority=self.specbuild.priority,
            timeout=None if milliseconds is None else milliseconds / 1000,
        )

    @abstractmethod
    def _prompts(self, tokenizer: Tokenizer, max_bytes: int) -> Sequence[Sequence[int]]:
        """Token ids of each prompt."""

    @property
    @abstractmethod
    def _limit(self) -> int | None:
        """The most output tokens; None: no such limit."""

    @property
    @abstractmethod
    def _top(self) -> int | None:
        """How many likely tokens are reported with each; None: no log-probabilities at all."""


def _content(value: Any) -> Any:
    """Text, or that of text parts."""
    if not isinstance(value, list):
        return value
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise wrong(f'part {index} is {part!r:.{SHOWN}}, but must be {{"type": "text", "text": "…"}}: the model reads text alone')
    return "".join(part["text"] for part in value)


class Message(Body):
    """One of a chat."""

    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "refusal": (),
        "tool_calls": ([],),
        "tool_call_id": (),
        "function_call": (),
        "audio": (),
        "annotations": ([],),
    }
    IGNORED = frozenset({"name"})
    role: str
    content: Annotated[str, BeforeValidator(_content)]


class ChatRequest(Request):
    """Of ``/v1/chat/completions``."""

    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "web_search_options": (),
        "store": (False,),
    }
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    def _prompts(self, tokenizer: Tokenizer, max_bytes: int) -> Sequence[Sequence[int]]:
        _check_length("messages", [message.content for message in self.messages], max_bytes)
        return [tokenizer.chat([message.model_dump() for message in self.messages])]

    @property
    def _limit(self) -> int | None:
        given = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(given) > 1:
            raise RefusedError(
                f"max_tokens is {self.max_tokens}, but max_completion_tokens is {self.max_completion_tokens}; leave one of them out"
            )
        return next(iter(given), None)

    @property
    def _top(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise RefusedError(f"top_logprobs is {self.top_logprobs}, but logprobs is false; set it to true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


def _several(value: Any) -> list[str | list[int]]:
    """A prompt, or several, as several."""
    many = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
    for prompt in many:
        ids = isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)
        if not isinstance(prompt, str) and not ids:
            raise wrong(f"it is {value!r:.{SHOWN}}, but must be text, token ids, or a list of texts or of lists of token ids")
    return many


class CompletionRequest(Request):
    """Of ``/v1/completions``."""

    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = {"echo": (False,), "suffix": ("",)}
    prompt: Annotated[list[str | list[int]], PlainValidator(_several)]
    max_tokens: int | None = 16  # OpenAI's default
    best_of: int | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    def _prompts(self, tokenizer: Tokenizer, max_bytes: int) -> Sequence[Sequence[int]]:
        if self.best_of not in (None, self.n):
            raise RefusedError(f"best_of is {self.best_of}, but must be n, which is {self.n}: every choice is returned", param="best_of")
        _check_length("prompt", [prompt for prompt in self.prompt if isinstance(prompt, str)], max_bytes)
        return [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in self.prompt]

    @property
    def _limit(self) -> int | None:
        return self.max_tokens

    @property
    def _top(self) -> int | None:
        return self.logprobs


def _check_length(field: str, texts: Sequence[str], max_bytes: int) -> None:
    """Tokenizing what cannot fit would hold everybody up."""
    longest = max((len(text.encode()) for text in texts), default=0)
    if longest > max_bytes:
        raise RefusedError(f"{field} has {longest} bytes, but no text above {max_bytes} fits into a sequence; shorten it", param=field)
