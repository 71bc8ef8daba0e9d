"""Whether a server that lives also works: the turns of its models' threads, read from its metrics.

Triton's own readiness does not tell: it says ready of a model whose process stands still.
"""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from time import monotonic

from .metrics import PREFIX, TURNS

LOOKS = 20
"""How often a server is looked at before it is given up."""
PATIENCE = 0.25
"""Of the time after which it is given up, what one look may wait for an answer."""
SAMPLE = re.compile(rf"^{PREFIX}{TURNS}(\{{.*\}}) (\S+)$", re.MULTILINE)


class Pulse:
    """How long one of several counters has stood still, in seconds of looking."""

    def __init__(self) -> None:
        self.still = 0.0
        self._before: Mapping[str, str] = {}

    def look(self, now: Mapping[str, str], seconds: float) -> None:
        """The counters as they are ``seconds`` after the look before; none: there was no answer."""
        if now and all(now.get(name) != value for name, value in self._before.items()):
            self.still, self._before = 0.0, now
        else:
            self.still += seconds


class Heartbeat:
    """A thread that looks at the metrics at ``url`` until it is closed; ``stopped`` once they stood still for ``limit`` seconds."""

    def __init__(self, url: str, limit: float) -> None:
        self._url = url
        self._limit = limit
        self._pulse = Pulse()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specbuild-heartbeat", daemon=True)
        self._thread.start()

    @property
    def stopped(self) -> bool:
        """Whether the server hangs."""
        return self._pulse.still >= self._limit

    def close(self) -> None:
        """End the thread; the server may still be there, or not."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        pause, patience = self._limit / LOOKS, self._limit * PATIENCE
        before = monotonic()
        while not self._end.wait(pause):
            counters = self._counters(patience)
            now = monotonic()
            # Where we stood still ourselves (a frozen container, a machine without memory) the server did so with us: that proves nothing.
            self._pulse.look(counters, min(now - before, pause + patience))
            before = now

    def _counters(self, patience: float) -> dict[str, str]:
        """Labels → turns; empty where the server does not answer."""
        try:
            with urllib.request.urlopen(self._url, timeout=patience) as answer:
                return dict(SAMPLE.findall(answer.read().decode()))
        except (OSError, HTTPException):
            return {}
