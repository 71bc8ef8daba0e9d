"""What a request may ask of sampling, checked once and then taken as true."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specbuild.errors import RequestError

MIN_TEMPERATURE = 1e-4
MAX_REPETITION_PENALTY = 1000.0
"""And its inverse the least: further out, penalised logits would leave float32."""
MAX_LOGPROBS = 20
SEED_BITS = 64


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Raises:
        RequestError: a value is out of its bounds, or two of them contradict each other.
    """

    temperature: float = 1.0
    """0: greedy, the most likely token after all transforms."""
    top_k: int | None = None
    """Keep the k most likely tokens; None or 0: all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose mass reaches this."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Divide positive logits and multiply negative ones of every token in prompt or output (CTRL, 1909.05858)."""
    presence_penalty: float = 0.0
    """Subtract from the logit of every token in the output (OpenAI's convention)."""
    frequency_penalty: float = 0.0
    """Subtract from the logit of a token for each time it is in the output (OpenAI's convention)."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id → added to its logit."""
    bad_words: Sequence[Sequence[int]] = ()
    """Token sequences that the output never completes, even where the prompt began them."""
    min_tokens: int = 0
    """No stop id or end of sequence before so many output tokens."""
    max_tokens: int = 128
    """The most output tokens."""
    seed: int | None = None
    """Of the noise; None: the generator draws one and reports it."""
    stop: Sequence[str] = ()
    """Strings that end the output; they are not part of the text."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the output, beside the model's own end of sequence."""
    ignore_eos: bool = False
    """The model's end of sequence is a token like any other."""
    logprobs: int | None = None
    """Report each emitted token's log-probability and so many of the most likely ones; None: none."""
    speculation: str | None = None
    """Proposer of this request, or ``off``; None: the recipe's. Which there are, the generator knows."""
    draft_len: int | None = None
    """Draft tokens a round of this request; None: the recipe's."""
    tree_budget: int | None = None
    """Tokens of a draft's whole tree, whose longest path has ``draft_len`` of them; 0: chains; None: the recipe's."""
    share_history: bool = True
    """Drafts may be copied from what other requests were answered, and theirs from this answer. The text is the same either way, but
    what is drafted can be told from how fast it comes."""
    tenant: str | None = None
    """Whose history: only requests of one tenant share it; None is a tenant too."""

    def __post_init__(self) -> None:
        self._freeze()
        _number("temperature", self.temperature, 0.0, math.inf)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise RequestError(f"temperature is {self.temperature}, but must be 0 (greedy) or at least {MIN_TEMPERATURE}")
        if self.top_k is not None:
            _integer("top_k", self.top_k, 0)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for token, bias in self.logit_bias.items():
            _integer("logit_bias's token id", token, 0)
            _number(f"logit_bias[{token}]", bias, -100.0, 100.0)
        for token in (token for word in self.bad_words for token in word):
            _integer("bad_words' token id", token, 0)
        for token in self.stop_token_ids:
            _integer("stop_token_ids' token id", token, 0)
        _integer("max_tokens", self.max_tokens, 1)
        _integer("min_tokens", self.min_tokens, 0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**SEED_BITS - 1)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.draft_len is not None:
            _integer("draft_len", self.draft_len, 1)
        if self.tree_budget is not None:
            _integer("tree_budget", self.tree_budget, 0)
        for name in ("ignore_eos", "share_history"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {getattr(self, name)!r}, but must be True or False")
        if not isinstance(self.tenant, str | None):
            raise RequestError(f"tenant is {self.tenant!r}, but must be a name")
        if not isinstance(self.speculation, str | None):
            raise RequestError(f"speculation is {self.speculation!r}, but must be the name of a method")
        self._refuse_contradictions()

    def _freeze(self) -> None:
        """Whatever collections were given, keep ones that nobody else can change."""
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias is {self.logit_bias!r}, but must map token ids to numbers")
        freeze = object.__setattr__
        freeze(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        freeze(self, "bad_words", tuple(_listed("a word of bad_words", word) for word in _listed("bad_words", self.bad_words)))
        freeze(self, "stop", _listed("stop", self.stop))
        freeze(self, "stop_token_ids", _listed("stop_token_ids", self.stop_token_ids))

    def _refuse_contradictions(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}; lower it or raise max_tokens")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError(f"stop is {list(self.stop)!r}; every stop string must have at least one character")
        if not all(self.bad_words):
            raise RequestError("bad_words has an empty sequence, which would forbid everything; leave it out")
        if self.speculation == "off":
            for name in ("draft_len", "tree_budget"):
                if (value := getattr(self, name)) is not None:
                    raise RequestError(f"{name} is {value}, but speculation is 'off'; leave one of them out")
        if self.draft_len and self.tree_budget and self.tree_budget < self.draft_len:
            raise RequestError(f"tree_budget is {self.tree_budget}, below draft_len {self.draft_len}; raise it, or set it to 0 for chains")

    def check(self, vocabulary_size: int) -> None:
        """Compare every token id with the vocabulary.

        Raises:
            RequestError: an id is not below ``vocabulary_size``.
        """
        ids = {
            "logit_bias": self.logit_bias,
            "bad_words": [token for word in self.bad_words for token in word],
            "stop_token_ids": self.stop_token_ids,
        }
        for name, tokens in ids.items():
            for token in tokens:
                if token >= vocabulary_size:
                    raise RequestError(f"{name} has token id {token}, but the vocabulary ends at {vocabulary_size - 1}")


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Refuse what is not a finite number of low…high, or of (low, high] with ``above``."""
    bound = f"above {low:g}" if above else f"at least {low:g}"
    bound += f" and at most {high:g}" if math.isfinite(high) else ""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise RequestError(f"{name} is {value!r}, but must be a finite number, {bound}")
    if not low <= value <= high or (above and value == low):
        raise RequestError(f"{name} is {value}, but must be {bound}")


def _listed(name: str, value: object) -> tuple[Any, ...]:
    """The items of ``value``; a text is none of several, a mapping's keys are not what was meant."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise RequestError(f"{name} is {value!r}, but must be a list")
    return tuple(value)


def _integer(name: str, value: object, low: int, high: int | None = None) -> None:
    bound = f"at least {low}" + (f" and at most {high}" if high is not None else "")
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} is {value!r}, but must be a whole number, {bound}")
    if value < low or (high is not None and value > high):
        raise RequestError(f"{name} is {value}, but must be {bound}")
