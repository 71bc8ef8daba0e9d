"""A generator in a thread of its own: requests come in from any thread, what they give goes out as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from specbuild.errors import SpecbuildError

from .generator import Delta, Generator, Prompt
from .sampling import SamplingParams


class Sink(Protocol):
    """Where one request's answer goes. Called from the service's thread: it must return soon and not raise."""

    def delta(self, delta: Delta) -> None:
        """A round added something; ``delta.completion`` comes with the last one."""
        ...

    def failed(self, error: SpecbuildError) -> None:
        """It ends here: cancelled, too late, or refused by what the engine said. Nothing follows."""
        ...

    def cancelled(self) -> bool:
        """Whether its client has gone; asked once a round."""
        ...


@dataclass(frozen=True)
class ServiceStats:
    """A snapshot. Counters only grow."""

    queued: int
    running: int
    kv_used_tokens: int
    kv_capacity_tokens: int
    requests: int
    completed: int
    cancelled: int
    timed_out: int
    rejected: int
    failed: int
    prompt_tokens: int
    reused_tokens: int
    emitted_tokens: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...]
    queue_seconds: float
    prefill_seconds: float
    rounds: int
    round_seconds: float
    draft_lens: tuple[int, ...]
    """Index k: rounds of a sequence that were given k draft tokens."""


class Service:
    """Owns a generator and its loop. What is asked for is checked in the caller's thread and generated in the service's."""

    def __init__(self, generator: Generator, *, queue_limit: int = 256) -> None:
        self.generator = generator

    def submit(self, prompt: Prompt, params: SamplingParams, sink: Sink, *, priority: int = 0, timeout: float | None = None) -> object:
        """Queue a request; returns its id. ``sink`` gets all that follows, its last call is ``failed`` or the delta with the completion.

        Args:
            priority: Lower numbers are admitted first; equals in order of arrival.
            timeout: Seconds from now after which it fails with ``TimedOutError``, wherever it is.

        Raises:
            RequestError: the prompt or a parameter is outside what the bundle allows.
            BusyError: the queue is full.
        """
        raise NotImplementedError

    def stats(self) -> ServiceStats:
        """The figures as they stand, from any thread."""
        raise NotImplementedError

    def on_round(self, observer: Callable[[ServiceStats], None]) -> None:
        """Have ``observer`` called from the service's thread after rounds, at most ten times a second."""
        raise NotImplementedError

    def close(self, *, wait: bool = True) -> None:
        """Stop the thread; whatever runs or waits fails with ``CancelledError``."""
        raise NotImplementedError
