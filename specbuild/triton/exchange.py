"""One request on its way: what the service says of it becomes responses."""

from __future__ import annotations

import time
from typing import Any, Protocol

from specbuild.errors import SpecbuildError
from specbuild.runtime.generator import Completion, Delta

from .call import Call
from .latencies import Latencies
from .reply import Reply

Message = Reply | SpecbuildError


class Outlet(Protocol):
    """Takes what is to be sent; does not block."""

    def put(self, exchange: Exchange, message: Message) -> None: ...


class Exchange:
    """The sink of one request. Its methods run in the service's thread and never wait for the network."""

    def __init__(self, call: Call, outlet: Outlet, latencies: Latencies, *, sender: Any = None, request_id: str = "") -> None:
        self.call = call
        self.sender = sender
        """Triton's response sender, for whoever sends."""
        self.request_id = request_id
        self.gone = False
        """Its client has left or asked for its end; whoever notices sets it."""
        self.closed = False
        """Its last response has been handed to Triton."""
        self._outlet = outlet
        self._latencies = latencies
        self._accepted: list[int] = []
        self._drafted: list[int] = []
        self._logprob = 0.0
        self._arrived = time.monotonic_ns()
        self._first = self._last = 0

    def delta(self, delta: Delta) -> None:
        """Streamed, each is a response; else the last one is the only one."""
        self._clock()
        self._accepted.append(delta.accepted)
        self._drafted.append(delta.drafted)
        self._logprob += sum(one.logprob for one in delta.logprobs)
        if delta.completion is not None:
            self._outlet.put(self, self._final(delta, delta.completion))
        elif self.call.streaming:
            self._outlet.put(self, Reply(self._opening() + delta.text, delta.tokens, delta.logprobs, self._logprob))

    def failed(self, error: SpecbuildError) -> None:
        """The error is the last response."""
        self._outlet.put(self, error)

    def cancelled(self) -> bool:
        """Asked once a round: a flag, since asking Triton is a way to another process."""
        return self.gone

    def _clock(self) -> None:
        now = time.monotonic_ns()
        if self._first:
            self._latencies.between.observe((now - self._last) / 1e9)
        else:
            self._first = now
            self._latencies.first.observe((now - self._arrived) / 1e9)
        self._last = now

    def _opening(self) -> str:
        return self.call.echo if len(self._accepted) == 1 else ""

    def _final(self, delta: Delta, completion: Completion) -> Reply:
        streaming = self.call.streaming
        return Reply(
            text=self._opening() + delta.text if streaming else self.call.echo + completion.text,
            tokens=delta.tokens if streaming else completion.token_ids,
            logprobs=delta.logprobs if streaming else completion.logprobs,
            cumulative_logprob=self._logprob,
            accepted=tuple(self._accepted),
            drafted=tuple(self._drafted),
            completion=completion,
            arrived=self._arrived,
            first=self._first,
            last=self._last,
        )
