"""What both clients have in common: a request's tensors, and what a response says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import InferInput, InferResult

from specbuild.errors import UsageError
from specbuild.runtime.generator import Prompt
from specbuild.runtime.sampling import SamplingParams

from .fields import BY_NAME, BY_PARAM, FIGURES, OUTPUTS
from .kinds import Tensor

ASKED = ("return_finish_reason", "return_stop_reason", FIGURES)
MODEL = "specbuild"
URL = "127.0.0.1:8001"


@dataclass(frozen=True)
class Chunk:
    """What one response added."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """Where they were asked for: of each of ``tokens`` {token, logprob, top}."""


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    stop_reason: str | None
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """As a chunk's, of all tokens."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """By the names of the response's tensors, such as ``mean_acceptance_length``."""


def tensors(prompt: Prompt, params: SamplingParams | None, *, streaming: bool, priority: int, timeout: float | None) -> dict[str, Tensor]:
    """Input name → tensor; of ``params`` only what is not the default.

    Raises:
        UsageError: a number that its tensor cannot hold, such as a seed above 64 bits.
    """
    values: dict[str, Any] = {_prompt_field(prompt): [prompt] if isinstance(prompt, str) else prompt, "streaming": streaming}
    values |= dict.fromkeys(ASKED, True)
    if priority:
        values["priority"] = priority
    if timeout is not None:
        values["timeout_ms"] = max(1, round(timeout * 1000))
    for option in dataclasses.fields(SamplingParams):
        value = getattr(params, option.name) if params is not None else None
        default = option.default_factory() if option.default_factory is not dataclasses.MISSING else option.default
        if value is not None and value != default:
            values[BY_PARAM[option.name].name] = _plain(value)
    made = {}
    for name, value in values.items():
        try:
            made[name] = BY_NAME[name].kind.write(value)
        except (OverflowError, ValueError, TypeError) as error:
            raise UsageError(f"{name} cannot be sent: {value!r} is no {BY_NAME[name].kind.wire}") from error
    return made


def _prompt_field(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return "text_input"
    return "chat" if len(prompt) and isinstance(prompt[0], Mapping) else "input_ids"


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def inputs(arrays: Mapping[str, Tensor]) -> list[InferInput]:
    """The same as the client library has it."""
    made = []
    for name, array in arrays.items():
        tensor = InferInput(name, list(array.shape), BY_NAME[name].kind.wire)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


class Gatherer:
    """Puts the responses of one request together."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._rest: dict[str, Any] = {}

    def take(self, result: InferResult) -> Chunk:
        """What this response added."""
        values = {output.name: array for output in OUTPUTS if (array := result.as_numpy(output.name)) is not None}
        read = {output.name: output.kind.read(output.name, values[output.name]) for output in OUTPUTS if output.name in values}
        chunk = Chunk(read.pop("text_output")[0], tuple(read.pop("output_ids")), tuple(read.pop("logprobs", ())))
        self._chunks.append(chunk)
        self._rest |= read
        return chunk

    @property
    def complete(self) -> bool:
        """Whether the last response has come."""
        return "finish_reason" in self._rest

    def answer(self) -> Answer:
        """All of it."""
        rest = dict(self._rest)
        (finish,), (stop,) = rest.pop("finish_reason"), rest.pop("stop_reason")
        return Answer(
            text="".join(chunk.text for chunk in self._chunks),
            tokens=tuple(token for chunk in self._chunks for token in chunk.tokens),
            finish_reason=finish,
            stop_reason=None if stop == "None" else stop,
            logprobs=tuple(one for chunk in self._chunks for one in chunk.logprobs),
            figures=rest,
        )
