"""A client of a served bundle, for threads. Each request has a stream of its own, so any number of threads may share one client."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Self

from tritonclient.grpc import InferenceServerClient, InferResult
from tritonclient.utils import InferenceServerException

from specbuild.runtime.generator import Prompt
from specbuild.runtime.sampling import SamplingParams

from .faults import from_wire
from .kinds import Tensor
from .wire import MODEL, URL, Answer, Chunk, Gatherer, inputs, tensors

Item = tuple[InferResult | None, InferenceServerException | None]
GRACE = 5.0
"""Seconds past a request's own timeout after which a server that says nothing is given up."""


class Stream(Iterator[Chunk]):
    """Chunks as they come. Leaving the loop early and closing it (or dropping it) cancels the request; ``answer`` has the whole."""

    def __init__(self, client: InferenceServerClient, model: str, arrays: Mapping[str, Tensor], timeout: float | None) -> None:
        self._client = client
        self._gatherer = Gatherer()
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._timeout = None if timeout is None else timeout + GRACE
        self._closed = False
        self._over = False
        """The last response has come."""
        client.start_stream(lambda result, error: self._items.put((result, error)), stream_timeout=self._timeout)
        # A stream that broke before the request was sent says why through the callback.
        with suppress(InferenceServerException):
            client.async_stream_infer(model, inputs(arrays))

    def __next__(self) -> Chunk:
        if not self._over and not self._closed:
            result, error = self._items.get()
            if error is not None:
                self._over = True
                self.close()
                raise from_wire(error.message(), error.status())
            assert result is not None, "a result or an error"
            chunk = self._gatherer.take(result)
            self._over = self._gatherer.complete
            return chunk
        self.close()
        raise StopIteration

    @property
    def answer(self) -> Answer:
        """The whole answer, once the loop has come to its end."""
        assert self._gatherer.complete, "the stream has not come to its end"
        return self._gatherer.answer()

    def close(self) -> None:
        """Cancel the request if it still runs."""
        if not self._closed:
            self._closed = True
            self._client.stop_stream(cancel_requests=not self._over)
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Client:
    """Asks the model ``model`` at ``url``."""

    def __init__(self, url: str = URL, model: str = MODEL) -> None:
        self.url = url
        self.model = model

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0, timeout: float | None = None) -> Stream:
        """The answer as it is made.

        Args:
            prompt: Plain text, token ids or chat messages.
            timeout: Seconds after which the server gives up.

        Raises:
            RequestError: the server refuses the request; so do the other errors, from the loop.
            BusyError: its queue is full.
            TimedOutError, CancelledError: it was not done in time, or somebody ended it.
            ServerError: it is not there, or failed.
        """
        arrays = tensors(prompt, params, streaming=True, priority=priority, timeout=timeout)
        return Stream(InferenceServerClient(self.url), self.model, arrays, timeout)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0, timeout: float | None = None) -> Answer:
        """The whole answer, in one response. Raises what ``stream`` does."""
        arrays = tensors(prompt, params, streaming=False, priority=priority, timeout=timeout)
        with Stream(InferenceServerClient(self.url), self.model, arrays, timeout) as stream:
            for _ in stream:
                pass
            return stream.answer

    def ready(self) -> bool:
        """Whether the model is there and takes requests."""
        with InferenceServerClient(self.url) as client:
            try:
                return bool(client.is_model_ready(self.model, client_timeout=5))
            except InferenceServerException:
                return False
