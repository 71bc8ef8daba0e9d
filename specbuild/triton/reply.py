"""What one response says, before it becomes tensors."""

from __future__ import annotations

from dataclasses import dataclass

from specbuild.runtime.generator import Completion
from specbuild.runtime.logprobs import Logprobs


@dataclass(frozen=True)
class Reply:
    """One response: a streamed one has what is new, the last of a request what came of it all."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()
    """One for each of ``tokens``, where they were asked for."""
    cumulative_logprob: float = 0.0
    """Of all tokens so far, in nats."""
    accepted: tuple[int, ...] = ()
    """Of every round so far, its accepted draft tokens."""
    drafted: tuple[int, ...] = ()
    """Of every round so far, the tokens of its draft."""
    completion: Completion | None = None
    arrived: int = 0
    first: int = 0
    last: int = 0
    """Nanoseconds of a monotonic clock: the request's arrival, its first and its last token."""

    @property
    def done(self) -> Completion:
        """The completion, where this is known to be the last response."""
        assert self.completion is not None, "only the last response has figures"
        return self.completion

    @property
    def histogram(self) -> list[int]:
        """At n: rounds that accepted n draft tokens."""
        return [self.accepted.count(n) for n in range(max(self.accepted, default=0) + 1)]
