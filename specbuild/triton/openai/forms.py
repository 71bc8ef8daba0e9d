"""What differs between answers of OpenAI's two APIs: how text and log-probabilities are written."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Object = dict[str, Any]
Logprobs = Sequence[Mapping[str, Any]]
"""Of each token {token, logprob, top: [[token, logprob], …]}."""
TokenBytes = Callable[[int], bytes]


class Form(Protocol):
    """One of the two. An object serves one request: it may remember what it has written of each choice."""

    prefix: str
    """Of ids."""
    whole: str
    """``object`` of an answer."""
    part: str
    """``object`` of a chunk."""

    def message(self, text: str) -> Object:
        """All of a choice's text."""
        ...

    def delta(self, text: str, *, first: bool) -> Object:
        """What is new of it."""
        ...

    def logprobs(self, index: int, tokens: Logprobs) -> Object:
        """Of what is new of choice ``index``."""
        ...


class ChatForm:
    """Of ``/v1/chat/completions``."""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes

    def message(self, text: str) -> Object:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str, *, first: bool) -> Object:
        return {"delta": {"role": "assistant", "content": text} if first else {"content": text} if text else {}}

    def logprobs(self, index: int, tokens: Logprobs) -> Object:
        content = [self._one(one["token"], one["logprob"]) | {"top_logprobs": [self._one(*pair) for pair in one["top"]]} for one in tokens]
        return {"content": content, "refusal": None}

    def _one(self, token: int, logprob: float) -> Object:
        raw = self._token_bytes(token)
        return {"token": _shown(raw), "logprob": logprob, "bytes": list(raw)}


class CompletionForm:
    """Of ``/v1/completions``."""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoders: defaultdict[int, codecs.IncrementalDecoder] = defaultdict(lambda: codecs.getincrementaldecoder("utf-8")("replace"))
        self._lengths: defaultdict[int, int] = defaultdict(int)
        """Of each choice's text so far, in characters."""

    def message(self, text: str) -> Object:
        return {"text": text}

    def delta(self, text: str, *, first: bool) -> Object:
        return {"text": text}

    def logprobs(self, index: int, tokens: Logprobs) -> Object:
        return {
            "tokens": [_shown(self._token_bytes(one["token"])) for one in tokens],
            "token_logprobs": [one["logprob"] for one in tokens],
            "top_logprobs": [self._likely(one) for one in tokens],
            "text_offset": [self._advance(index, one["token"]) for one in tokens],
        }

    def _likely(self, one: Mapping[str, Any]) -> Object:
        """The most likely tokens, and the one that it was."""
        pairs = [*one["top"], (one["token"], one["logprob"])]
        return {_shown(self._token_bytes(token)): logprob for token, logprob in pairs}

    def _advance(self, index: int, token: int) -> int:
        """Where ``token`` begins in the choice's text."""
        begin = self._lengths[index]
        self._lengths[index] += len(self._decoders[index].decode(self._token_bytes(token)))
        return begin


def _shown(raw: bytes) -> str:
    """A token's text; a part of a character, which would look like any other, as its bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
