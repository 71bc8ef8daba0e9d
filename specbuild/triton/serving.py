"""Keeping a server up: started, watched, and started again when one of its processes dies or hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from specbuild.errors import ServerError

Say = Callable[[str], None]


class Watched(Protocol):
    """What is kept up."""

    def start(self) -> None: ...
    def wait_ready(self, *, end: threading.Event) -> None: ...
    def stop(self, *, at_once: bool = False) -> None: ...
    @property
    def trouble(self) -> str | None: ...


@dataclass(frozen=True)
class Backoff:
    """How restarts are spaced, and when they end."""

    first: float = 1.0
    longest: float = 30.0
    tries: int = 5
    """Restarts in a row, each of which did not live for ``settled`` seconds, after which it is given up."""
    settled: float = 60.0
    watch: float = 0.1
    """Seconds between two looks at the server."""

    def pauses(self) -> Iterator[float]:
        """Seconds to wait before each restart in a row."""
        for attempt in range(self.tries):
            yield min(self.first * 2**attempt, self.longest)


def serve(make: Callable[[], Watched], end: threading.Event, *, say: Say, ready: Callable[[], None], backoff: Backoff = Backoff()) -> None:
    """Run a server until ``end`` is set, a new one from ``make`` in place of one that is in trouble.

    Clients of one whose model died or hangs would wait for ever, so all of it is killed at once: they get an error.

    Raises:
        ServerError: it does not start, or was in trouble again and again.
    """
    pauses = backoff.pauses()
    first = True
    while True:
        server = make()
        try:
            server.start()
            started = time.monotonic()
            try:
                server.wait_ready(end=end)
                if not end.is_set():
                    ready()
                first = False
                while (trouble := server.trouble) is None and not end.wait(backoff.watch):
                    pass
            except ServerError as error:
                if first:
                    raise
                say(f"the server did not come back: {error}")
                trouble = "it is not there"
            asked = end.is_set()
            if time.monotonic() - started >= backoff.settled:
                pauses = backoff.pauses()
        except BaseException:
            server.stop()
            raise
        server.stop(at_once=not asked)
        if asked:
            return
        pause = next(pauses, None)
        if pause is None:
            raise ServerError(
                f"{trouble}; started {backoff.tries + 1} times without {backoff.settled:g} s of work in between, it is given up"
            )
        say(f"{trouble}; starting it again in {pause:g} s")
        if end.wait(pause):
            return
