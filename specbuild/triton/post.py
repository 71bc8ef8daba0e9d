"""The one thread that talks to Triton: each response, each question and each metric is a way to another process."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from specbuild.errors import SpecbuildError

from .exchange import Exchange, Message
from .faults import to_triton
from .reply import Reply

WATCH_SECONDS = 0.05
"""How often Triton is asked whether clients have left."""
WATCH_SHARE = 0.05
"""Of the thread's time, the most that asking takes, however many requests wait."""
WATCH_LONGEST = 1.0
"""Seconds between two times of asking in any case: one that took long because the machine stood still says nothing of the next."""


class Post:
    """Sends responses in the order in which they come, and between them asks for cancelled requests and calls ``tick``."""

    def __init__(self, pb: Any, tick: Callable[[], None]) -> None:
        self._pb = pb
        self._tick = tick
        self._outbox: queue.SimpleQueue[tuple[Exchange, Message] | None] = queue.SimpleQueue()
        self._open: dict[int, Exchange] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="specbuild-post", daemon=True)
        self._thread.start()

    def open(self, exchange: Exchange) -> None:
        """Watch ``exchange`` until its last response is sent."""
        with self._lock:
            self._open[id(exchange)] = exchange

    def put(self, exchange: Exchange, message: Message) -> None:
        """Queue a response; an error or a completion is the last of its exchange."""
        self._outbox.put((exchange, message))

    def stop(self, request_id: str) -> None:
        """Mark the open exchanges of ``request_id`` as gone."""
        with self._lock:
            for exchange in self._open.values():
                if exchange.request_id == request_id:
                    exchange.gone = True

    def close(self) -> None:
        """Send what is queued, then end the thread."""
        self._outbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        chores = self._chores()
        due = time.monotonic()
        while True:
            try:
                item = self._outbox.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if item is None:
                    return
                self._send(*item)
            if time.monotonic() >= due:
                due = next(chores)

    def _chores(self) -> Iterator[float]:
        """What is done between responses, a question at a time so that no response waits for more than one. Yields when the next is due."""
        while True:
            with self._lock:
                waiting = list(self._open.values())
            spent = 0.0
            for exchange in waiting:
                if exchange.gone or exchange.closed:
                    continue
                began = time.monotonic()
                if exchange.sender.is_cancelled():
                    exchange.gone = True
                spent += time.monotonic() - began
                yield began
            began = time.monotonic()
            self._tick()
            now = time.monotonic()
            yield now + min(max(WATCH_SECONDS, (spent + now - began) / WATCH_SHARE), WATCH_LONGEST)

    def _send(self, exchange: Exchange, message: Message) -> None:
        if exchange.closed:
            return
        last = isinstance(message, SpecbuildError) or message.completion is not None
        if last:
            exchange.closed = True
            with self._lock:
                self._open.pop(id(exchange), None)
        flags = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
        try:
            exchange.sender.send(self._response(exchange, message), flags=flags)
        except Exception as error:  # the stub raises its own types; one request's trouble must not end the thread
            exchange.gone = True
            self._pb.Logger.log_warn(f"a response could not be sent: {error}")

    def _response(self, exchange: Exchange, message: Message) -> Any:
        pb = self._pb
        if not isinstance(message, Reply):
            code, text = to_triton(message)
            return pb.InferenceResponse(error=pb.TritonError(text, getattr(pb.TritonError, code)))
        tensors = [
            pb.Tensor(output.name, output.kind.write(output.value(message)))
            for output in exchange.call.outputs
            if message.completion is not None or not output.last
        ]
        return pb.InferenceResponse(output_tensors=tensors)
