"""A client of a served bundle, for asyncio. All requests share one channel, which has a connection to each address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Self

from grpc.aio import AioRpcError
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from specbuild.errors import ServerError
from specbuild.runtime.generator import Prompt
from specbuild.runtime.sampling import SamplingParams

from .client import GRACE
from .faults import from_wire
from .kinds import Tensor
from .wire import MODEL, URL, Answer, Chunk, Gatherer, inputs, tensors

CHANNEL = [
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
"""Where the name has many addresses, as a headless Service has, requests go to them in turn. Messages may have any length. A server
that was started again is found within a second (gRPC's own longest wait is two minutes)."""


class AsyncStream(AsyncIterator[Chunk]):
    """Chunks as they come; ``aclose`` cancels the request, and so does leaving ``async with``."""

    def __init__(self, client: InferenceServerClient, model: str, arrays: Mapping[str, Tensor], timeout: float | None) -> None:
        self._gatherer = Gatherer()
        self._over = False
        """The last response has come, or nobody waits for it."""

        async def request() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": model, "inputs": inputs(arrays)}

        self._responses = client.stream_infer(request(), stream_timeout=None if timeout is None else timeout + GRACE)

    async def __anext__(self) -> Chunk:
        if self._over:
            raise StopAsyncIteration
        try:
            result, error = await anext(self._responses)
            if error is None:
                chunk = self._gatherer.take(result)
                self._over = self._gatherer.complete
        except AioRpcError as broken:
            self._over = True
            raise from_wire(broken.details() or "", str(broken.code())) from None
        except StopAsyncIteration:
            self._over = True
            raise ServerError("the server ended the stream before its answer was whole") from None
        if error is not None:
            self._over = True
            await self._drain()
            raise from_wire(error.message())
        if self._over:
            await self._drain()
        return chunk

    @property
    def answer(self) -> Answer:
        """The whole answer, once the loop has come to its end."""
        assert self._gatherer.complete, "the stream has not come to its end"
        return self._gatherer.answer()

    async def aclose(self) -> None:
        """Cancel the request if it still runs."""
        if not self._over:
            self._over = True
            self._responses.cancel()

    async def _drain(self) -> None:
        """Let the call end by itself: cancelling what is over is a race in the server."""
        with suppress(AioRpcError):
            async for _ in self._responses:
                pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncClient:
    """Asks the model ``model`` at ``url``. Made where an event loop runs; ``async with`` closes it."""

    def __init__(self, url: str = URL, model: str = MODEL) -> None:
        self.url = url
        self.model = model
        self._client = InferenceServerClient(url, channel_args=CHANNEL)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0, timeout: float | None = None
    ) -> AsyncStream:
        """As ``Client.stream``."""
        arrays = tensors(prompt, params, streaming=True, priority=priority, timeout=timeout)
        return AsyncStream(self._client, self.model, arrays, timeout)

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0, timeout: float | None = None
    ) -> Answer:
        """As ``Client.generate``."""
        arrays = tensors(prompt, params, streaming=False, priority=priority, timeout=timeout)
        async with AsyncStream(self._client, self.model, arrays, timeout) as stream:
            async for _ in stream:
                pass
            return stream.answer

    async def ready(self) -> bool:
        """Whether the model is there and takes requests."""
        try:
            return bool(await self._client.is_model_ready(self.model, client_timeout=5))
        except InferenceServerException:
            return False

    async def close(self) -> None:
        """Close the channel."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
