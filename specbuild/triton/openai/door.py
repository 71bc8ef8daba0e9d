"""The door's HTTP server, in a thread beside whatever keeps Triton up."""

from __future__ import annotations

import threading
import time
from typing import Self

import uvicorn
from starlette.applications import Starlette

from specbuild.errors import ServerError

from ..server import bound

GRACE_SECONDS = 1
"""What answers that run may take when it is to stop."""
START_SECONDS = 30.0


class Door:
    """Serves ``app``. A context manager: within it requests are answered."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        self._socket = bound(host, port, "--openai")
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_SECONDS
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="specbuild-openai", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise ServerError("the OpenAI door did not start; see the log above")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
