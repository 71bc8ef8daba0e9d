"""A request from the wire, read and checked: what is to be generated, and what of it is to be reported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbuild.errors import RequestError, close_match
from specbuild.runtime.generator import Prompt
from specbuild.runtime.sampling import SamplingParams

from .fields import BY_NAME, INPUTS, OUTPUTS, Output
from .kinds import Tensor

Encode = Callable[[str], Sequence[int]]
PROMPTS = ("text_input", "input_ids", "chat")
PRIORITIES = 2**15


@dataclass(frozen=True)
class Call:
    """A request whose every field was checked for itself; what the bundle allows, the service checks."""

    prompt: Prompt
    params: SamplingParams
    streaming: bool = False
    echo: str = ""
    """The prompt's text, where the output is to begin with it."""
    priority: int = 0
    timeout: float | None = None
    """Seconds."""
    outputs: tuple[Output, ...] = ()
    """What responses are to have, in the table's order."""


def parse(
    tensors: Mapping[str, Tensor], encode: Encode, *, wanted: Collection[str], max_bytes: int, strangers: Collection[str] = ()
) -> Call:
    """Read a request.

    Args:
        tensors: Input name → tensor.
        encode: Token ids of a text, for words that the output must not say.
        wanted: Names of the outputs that the client takes.
        max_bytes: The most that a prompt may have: no longer one can fit, and tokenizing it would hold everybody up.
        strangers: Names of parameters that came beside the tensors; there are none to be set.

    Raises:
        RequestError: naming the field, the value seen and its bound.
    """
    for name in strangers:
        raise RequestError(f"{name!r} is no input of this model.{close_match(name, BY_NAME)}")
    for name in ("text_input", "chat"):
        if name in tensors and (length := sum(len(part) for part in tensors[name].reshape(-1))) > max_bytes:
            raise RequestError(f"{name} has {length} bytes, but no prompt above {max_bytes} fits into a sequence; shorten it")
    values = {field.name: field.kind.read(field.name, tensors[field.name]) for field in INPUTS if field.name in tensors}
    if values.get("sampling_param_best_of", 1) != 1:
        raise RequestError(f"sampling_param_best_of is {values['sampling_param_best_of']}, but must be 1")
    outputs = tuple(output for output in OUTPUTS if output.name in wanted and _asked(output, values))
    prompt = _prompt(values)
    echo = prompt if values.get("sampling_param_exclude_input_from_output") is False else ""
    if not isinstance(echo, str):
        raise RequestError("sampling_param_exclude_input_from_output is false, but only text_input can be repeated in the output")
    return Call(
        prompt=prompt,
        params=_params(values, encode),
        streaming=values.get("streaming", False),
        echo=echo,
        priority=_bounded(values, "priority", -PRIORITIES, PRIORITIES) or 0,
        timeout=None if (limit := _bounded(values, "timeout_ms", 1, None)) is None else limit / 1000,
        outputs=outputs,
    )


def _asked(output: Output, values: Mapping[str, Any]) -> bool:
    return output.asked_by is None or values.get(output.asked_by, False) is not False


def _bounded(values: Mapping[str, Any], name: str, low: int, high: int | None) -> int | None:
    value: int | None = values.get(name)
    if value is not None and (value < low or (high is not None and value > high)):
        raise RequestError(f"{name} is {value}, but must be at least {low}" + ("" if high is None else f" and at most {high}"))
    return value


def _prompt(values: Mapping[str, Any]) -> Prompt:
    given = [name for name in PROMPTS if name in values]
    if len(given) != 1:
        seen = " and ".join(given) + " were given" if given else "none was given"
        raise RequestError(f"exactly one of {', '.join(PROMPTS)} must be the prompt; {seen}")
    value = values[given[0]]
    if given[0] == "text_input":
        if len(value) != 1:
            raise RequestError(f"text_input has {len(value)} strings, but a request has one prompt; send one request for each")
        text: str = value[0]
        return text
    if given[0] == "chat":
        _check_chat(value)
    prompt: Prompt = value
    return prompt


def _check_chat(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise RequestError(f"chat is {_shown(messages)}, but must be a JSON array of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise RequestError(f"chat[{index}] is {_shown(message)}, but must be an object whose role and content are strings")


def _params(values: Mapping[str, Any], encode: Encode) -> SamplingParams:
    given = {field.param: values[field.name] for field in INPUTS if field.param is not None and field.name in values}
    if given.get("speculation") == "on":
        del given["speculation"]
    if "logit_bias" in given:
        given["logit_bias"] = _logit_bias(given["logit_bias"])
    if "bad_words" in given:
        given["bad_words"] = _bad_words(given["bad_words"], encode)
    if values.get("return_cumulative_logprob") and "logprobs" not in given:
        given["logprobs"] = 0
    return SamplingParams(**given)


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise RequestError(f'sampling_param_logit_bias is {_shown(value)}, but must be a JSON object such as {{"42": -100}}')
    for key in value:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise RequestError(f"sampling_param_logit_bias has the key {_shown(key)}, but keys are token ids")
    return {int(key): bias for key, bias in value.items()}


def _bad_words(value: Any, encode: Encode) -> list[Sequence[int]]:
    """Token sequences; a string is forbidden as it stands and after a space, which most tokenizers tell apart."""
    if not isinstance(value, list):
        raise RequestError(f"sampling_param_bad_words is {_shown(value)}, but must be a JSON array")
    words: list[Sequence[int]] = []
    for word in value:
        if isinstance(word, str) and word:
            words += [encode(word), encode(f" {word}")]
        elif isinstance(word, list) and all(isinstance(token, int) for token in word):
            words.append(word)
        else:
            raise RequestError(f"sampling_param_bad_words has {_shown(word)}, but must have strings or arrays of token ids")
    return words


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
