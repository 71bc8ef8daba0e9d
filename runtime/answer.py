"""What comes of a request: a delta each round, a completion at the end."""

from __future__ import annotations

from dataclasses import dataclass

from .logprobs import Logprobs
from .request import Emission, FinishReason, Running
from .stats import RequestStats


@dataclass(frozen=True)
class Completion:
    """One finished answer."""

    text: str
    """Without the stop string or the end-of-sequence token that ended it."""
    token_ids: tuple[int, ...]
    """All that was emitted, the token that ended it included."""
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or the stop token's id that ended it; None: the model's own end, or the length."""
    seed: int
    logprobs: tuple[Logprobs, ...]
    """One a token, where the request asked for them."""
    stats: RequestStats


@dataclass(frozen=True)
class Delta:
    """What one round added to one answer."""

    index: int
    """Of the prompt."""
    text: str
    tokens: tuple[int, ...]
    accepted: int
    """How many of ``tokens`` were drafted; they come first."""
    drafted: int
    """Tokens of the round's draft."""
    logprobs: tuple[Logprobs, ...]
    """One for each of ``tokens``, where the request asked for them."""
    completion: Completion | None
    """The whole answer, with the last delta."""


class Answer:
    """Gathers the emissions of one sequence."""

    def __init__(self, sequence: Running) -> None:
        self._sequence = sequence
        self._texts: list[str] = []
        self._logprobs: list[Logprobs] = []

    def take(self, index: int, emission: Emission) -> Delta:
        """The delta of ``emission``; with the last one comes the completion."""
        self._texts.append(emission.text)
        self._logprobs += emission.logprobs
        completion = None
        if emission.finish_reason is not None:
            completion = Completion(
                text="".join(self._texts),
                token_ids=tuple(self._sequence.output),
                finish_reason=emission.finish_reason,
                stop_reason=self._sequence.stop_reason,
                seed=self._sequence.request.seed,
                logprobs=tuple(self._logprobs),
                stats=self._sequence.counter.freeze(),
            )
        return Delta(index, emission.text, emission.tokens, emission.accepted, emission.drafted, emission.logprobs, completion)
