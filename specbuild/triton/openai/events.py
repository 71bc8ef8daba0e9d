"""Server-sent events: an answer whose parts go out as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from specbuild.errors import SpecbuildError

from . import errors
from .forms import Object
from .job import unless_gone

Emit = Callable[[Object], Coroutine[Any, Any, None]]
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # the latter: nginx would hold events back


class Events(StreamingResponse):
    """What ``produce`` emits. Until the first event an error is an answer of its own; after it, it is the last event."""

    def __init__(self, produce: Callable[[Emit], Awaitable[None]]) -> None:
        super().__init__((), media_type="text/event-stream", headers=HEADERS)
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; when the client leaves, ``produce`` is cancelled."""
        started = False
        one_at_a_time = asyncio.Lock()

        async def write(event: str) -> None:
            nonlocal started
            async with one_at_a_time:
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})

        async def produced() -> None:
            await self._produce(lambda event: write(json.dumps(event)))

        try:
            await unless_gone(receive, produced())
            await write("[DONE]")
        except SpecbuildError as error:
            if not started:
                raise
            await write(json.dumps(errors.body(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
