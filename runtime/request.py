"""A request, and the sequence that it becomes while it runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .acceptance import LOSSY, RULES, Rule, SeededRound, Verdict
from .context import Context
from .detokenizer import Detokenizer, StopFilter
from .draft import Draft, Shape
from .logprobs import Logprobs, logprobs
from .sampling import SamplingParams
from .stats import RequestCounter
from .tokenizer import Tokenizer
from .transforms import Transforms

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Request:
    """What is to be generated. Checked against vocabulary and capacity before it becomes one."""

    id: Hashable
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    """Of the noise, drawn where ``params`` has none."""
    method: str
    """Proposer by name, or ``off``."""
    draft_len: int
    draft_len_fixed: bool = True
    """False: the scheduler may choose another, and a chain where a tree is allowed."""
    tree_budget: int = 0
    """Tokens of a draft's whole tree, at most; 0: chains."""
    priority: int = 0
    """Lower numbers are admitted first."""

    @property
    def shape(self) -> Shape:
        """Of its drafts, where nobody chooses another."""
        return Shape(self.draft_len, max(self.draft_len, self.tree_budget))


@dataclass(frozen=True)
class Emission:
    """What a round gave one sequence, cut where it ended."""

    id: Hashable
    tokens: tuple[int, ...]
    accepted: int
    """How many of ``tokens`` were drafted; they come first."""
    drafted: int
    failed: bool
    """The draft went on after those and was rejected there."""
    text: str
    """Certain text: may lag behind the tokens, never runs past a stop string."""
    logprobs: tuple[Logprobs, ...]
    finish_reason: FinishReason | None


class Running:
    """A request in progress: its tokens, what its law needs to know of them, and its text. It holds no cache."""

    def __init__(self, request: Request, rule: str, tokenizer: Tokenizer, vocabulary_size: int, eos_token_ids: Sequence[int]) -> None:
        self.request = request
        self.context = Context(request.prompt)
        self.transforms = Transforms(request.params, vocabulary_size, tuple(eos_token_ids))
        self.rule: Rule = LOSSY[rule] if rule in LOSSY else RULES[rule]
        self.counter = RequestCounter(len(request.prompt), lossy=rule if rule in LOSSY and request.method != "off" else None)
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        """The stop string or the stop token's id that ended it; None: the model's own end, or the length."""
        self._detokenizer = Detokenizer(tokenizer, request.prompt)
        self._stops = StopFilter(request.params.stop)
        eos = () if request.params.ignore_eos else tuple(eos_token_ids)
        self._ends = frozenset((*eos, *request.params.stop_token_ids))

    @property
    def id(self) -> Hashable:
        """The request's."""
        return self.request.id

    @property
    def tokens(self) -> list[int]:
        """Prompt and output; not to be changed."""
        return self.context.tokens

    @property
    def output(self) -> list[int]:
        """Tokens emitted so far; a copy."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def wanted(self) -> int:
        """Output tokens that may still come."""
        return self.request.params.max_tokens - self.context.output_length

    @property
    def randomness(self) -> SeededRound:
        """The choices of the round that starts now: proposer and acceptance share it."""
        return SeededRound(self.request.seed, self.context.position)

    def judge(self, rows: NDArray[np.float32], draft: Draft) -> Verdict:
        """Acceptance of ``draft`` by the target's logits ``rows`` [1 + len(draft), V]; nothing changes yet."""
        return self.rule.judge(self.transforms.laws(rows, draft, self.context), draft, self.randomness)

    def take(self, verdict: Verdict, rows: NDArray[np.float32], draft: Draft) -> Emission:
        """Append the verdict's tokens until one of them ends the sequence; only those are emitted and counted."""
        texts: list[str] = []
        chances: list[Logprobs] = []
        taken = 0
        nodes = (-1, *verdict.accepted)
        for node, token in zip(nodes, verdict.tokens, strict=True):
            if self.request.params.logprobs is not None:
                chances.append(logprobs(rows[node + 1], token, self.request.params.logprobs, self.transforms.vocabulary_size))
            taken += 1
            texts.append(self._append(token))
            if self.finish_reason is not None:
                break
        accepted = min(len(verdict.accepted), taken)
        failed = taken > accepted and bool(draft.children(nodes[-1]))
        self.counter.observe(emitted=taken, drafted=verdict.drafted, accepted=accepted, failed=failed)
        return Emission(
            self.id, verdict.tokens[:taken], accepted, verdict.drafted, failed, "".join(texts), tuple(chances), self.finish_reason
        )

    def _append(self, token: int) -> str:
        """The text that ``token`` makes certain; sets ``finish_reason`` and ``stop_reason`` when it is the last."""
        self.context.push(token)
        if token in self._ends:
            self.finish_reason = "stop"
            self.stop_reason = token if token in self.request.params.stop_token_ids else None
            return self._rest("")
        text, self.stop_reason = self._stops.push(self._detokenizer.push(token))
        if self.stop_reason is not None:
            self.finish_reason = "stop"
        elif self.wanted == 0:
            self.finish_reason = "length"
            return self._rest(text)
        return text

    def _rest(self, text: str) -> str:
        """``text`` and what was held back for characters and stop strings that never came; now and then it completes a stop string."""
        last, stop = self._stops.push(self._detokenizer.flush())
        if stop is None:
            return text + last + self._stops.flush()
        self.finish_reason, self.stop_reason = "stop", stop
        return text + last
