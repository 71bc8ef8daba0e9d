"""A generator in a thread of its own: requests come in from any thread, what they give goes out as it comes."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TypeVar

from specbuild.errors import BusyError, CancelledError, SpecbuildError, TimedOutError

from .answer import Answer, Delta
from .generator import Generator, Prompt
from .request import Emission, Running
from .sampling import SamplingParams
from .service_stats import ServiceCounter, ServiceStats

log = logging.getLogger(__name__)
T = TypeVar("T")
IDLE_SECONDS = 0.5
"""How long the thread waits for work before it takes another turn: one that stands still hangs."""


class Sink(Protocol):
    """Where one request's answer goes. Called from the service's thread: it must return soon."""

    def delta(self, delta: Delta) -> None:
        """A round added something; ``delta.completion`` comes with the last one."""
        ...

    def failed(self, error: SpecbuildError) -> None:
        """It ends here: cancelled, too late, or refused by what the engine said. Nothing follows."""
        ...

    def cancelled(self) -> bool:
        """Whether its client has gone; asked once a round."""
        ...


@dataclass
class _Live:
    """A request between submit and its last call of the sink."""

    sequence: Running
    answer: Answer
    sink: Sink
    submitted: float
    deadline: float | None
    admitted: bool = False


class Service:
    """Owns a generator and its loop. What is asked for is checked in the caller's thread and generated in the service's."""

    def __init__(self, generator: Generator, *, queue_limit: int = 256) -> None:
        self.generator = generator
        self._queue_limit = queue_limit
        self._incoming: deque[_Live] = deque()
        self._live: dict[Hashable, _Live] = {}
        self._counter = ServiceCounter()
        self._closing = False
        # Guards what other threads touch: the queue, the counters and ``_closing``; also wakes the service's thread.
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="specbuild-service", daemon=True)
        self._thread.start()

    def submit(self, prompt: Prompt, params: SamplingParams, sink: Sink, *, priority: int = 0, timeout: float | None = None) -> Hashable:
        """Queue a request; returns its id. ``sink`` gets all that follows, its last call is ``failed`` or the delta with the completion.

        Args:
            priority: Lower numbers are admitted first; equals in order of arrival.
            timeout: Seconds from now after which it fails with ``TimedOutError``, wherever it is.

        Raises:
            RequestError: the prompt or a parameter is outside what the bundle allows.
            BusyError: the queue is full, or the service is closing.
        """
        now = monotonic()
        try:
            sequence = self.generator.intake.sequence(prompt, params, priority=priority)
        except SpecbuildError:
            self.count_rejected()
            raise
        live = _Live(sequence, Answer(sequence), sink, now, None if timeout is None else now + timeout)
        with self._changed:
            waiting = len(self._incoming) + self.generator.loop.scheduler.waiting
            if self._closing or waiting >= self._queue_limit:
                self._counter.sums["busy"] += 1
                raise BusyError("the service is closing" if self._closing else f"{waiting} requests are waiting; try again later")
            self._counter.taken(sequence)
            self._incoming.append(live)
            self._changed.notify()
        return sequence.id

    def count_rejected(self) -> None:
        """Count a request that was found impossible before it came here."""
        with self._changed:
            self._counter.sums["rejected"] += 1

    def stats(self) -> ServiceStats:
        """The figures as they stand, from any thread."""
        loop, entry = self.generator.loop, self.generator.entry
        with self._changed:
            return self._counter.freeze(
                queued=len(self._incoming) + loop.scheduler.waiting,
                running=len(loop.scheduler.held),
                kv_used_tokens=loop.verifier.kv_tokens,
                kv_capacity_tokens=self.generator.rows * entry.max_seq_len,
                lossy=self.generator.lossy,
            )

    def close(self) -> None:
        """Stop the thread; whatever runs or waits fails with ``CancelledError``."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def check(self) -> None:
        """Assert that nothing is held for nobody: every row belongs to a live request."""
        self.generator.loop.verifier.check_rows(sequence.id for sequence in self.generator.loop.scheduler.held)

    def _run(self) -> None:
        while self._take():
            try:
                self._drop_unwanted()
                emissions = self.generator.loop.round()
            except Exception as error:  # whatever it was, the round's requests are lost and the service goes on
                log.exception("a round failed")
                for owner in list(self._live):
                    self._fail(owner, "failed", error if isinstance(error, SpecbuildError) else SpecbuildError(f"internal error: {error}"))
                continue
            self._hand_out(emissions)
        for owner in list(self._live):
            self._fail(owner, "cancelled", CancelledError("the service is closing"))

    def _take(self) -> bool:
        """Wait for work and move what came in to the scheduler; False when the service is to end."""
        with self._changed:
            self._counter.turns += 1
            while not (self._incoming or self._live or self._closing):
                self._changed.wait(IDLE_SECONDS)
                self._counter.turns += 1
            for live in self._incoming:
                self._live[live.sequence.id] = live
                self.generator.loop.scheduler.submit(live.sequence)
            self._incoming.clear()
            return not self._closing

    def _drop_unwanted(self) -> None:
        now = monotonic()
        for owner, live in list(self._live.items()):
            if live.sink.cancelled():
                self._fail(owner, "cancelled", CancelledError("the client has gone"))
            elif live.deadline is not None and now > live.deadline:
                self._fail(owner, "timed_out", TimedOutError(f"not done {live.deadline - live.submitted:g} s after it was asked for"))

    def _fail(self, owner: Hashable, how: str, error: SpecbuildError) -> None:
        live = self._live.pop(owner)
        self.generator.loop.cancel(owner)
        with self._changed:
            self._counter.sums[how] += 1
        _call(live.sink.failed, error)

    def _hand_out(self, emissions: list[Emission]) -> None:
        now = monotonic()
        with self._changed:
            self._counter.sums["rounds"] += bool(emissions)
            for owner in {*(sequence.id for sequence in self.generator.loop.scheduler.held), *(emission.id for emission in emissions)}:
                live = self._live[owner]
                if not live.admitted:
                    live.admitted = True
                    self._counter.admitted(live.sequence, now - live.submitted)
            for emission in emissions:
                self._counter.emitted(self._live[emission.id].sequence, emission)
        for emission in emissions:
            live = self._live[emission.id]
            delta = live.answer.take(0, emission)
            if emission.finish_reason is not None:
                del self._live[emission.id]
            _call(live.sink.delta, delta)


def _call(function: Callable[[T], None], argument: T) -> None:
    """A sink that raises harms nobody else."""
    try:
        function(argument)
    except Exception:
        log.exception("a sink failed")
