"""A server that answers and does not move is told from one that has nothing to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from specbuild.triton.heartbeat import Heartbeat, Pulse


def test_time_counts_while_nothing_moves() -> None:
    pulse = Pulse()
    seen = []
    for turns in ("1", "1", "1", "2", "2"):
        pulse.look({"a": turns}, 3.0)
        seen.append(pulse.still)
    assert seen == [0, 3, 6, 0, 3]


def test_no_answer_is_no_movement() -> None:
    pulse = Pulse()
    pulse.look({}, 3.0)
    assert pulse.still == 3
    pulse.look({"a": "1"}, 3.0)
    assert pulse.still == 0
    pulse.look({}, 3.0)
    pulse.look({"a": "1"}, 3.0)
    assert pulse.still == 6


def test_every_model_has_to_move() -> None:
    pulse = Pulse()
    for turns in range(4):
        pulse.look({"a": str(turns), "b": "7"}, 1.0)
    assert pulse.still == 3
    pulse.look({"a": "3", "b": "8"}, 1.0)
    assert pulse.still == 0, "both have moved since both were seen to"


@contextmanager
def metrics(turns: Callable[[], int]) -> Iterator[str]:
    """The URL of a metrics page as Triton has it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that the library calls
            page = f'# TYPE specbuild_turns counter\nspecbuild_turns{{model="specbuild"}} {turns()}\nspecbuild_rounds{{model="x"}} 5\n'
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def test_a_heart_that_beats_and_then_does_not() -> None:
    beats, alive = iter(range(10**9)), threading.Event()
    alive.set()
    last = 0

    def turns() -> int:
        nonlocal last
        last = next(beats) if alive.is_set() else last
        return last

    with metrics(turns) as url:
        heartbeat = Heartbeat(url, 0.5)
        time.sleep(1.0)
        assert not heartbeat.stopped
        alive.clear()
        wait_for_stop(heartbeat)
    heartbeat.close()


def test_a_server_that_is_not_there_has_stopped() -> None:
    with metrics(lambda: 1) as url:
        pass
    heartbeat = Heartbeat(url, 0.2)
    wait_for_stop(heartbeat)
    heartbeat.close()


def test_what_stood_still_with_us_is_given_another_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen container: an hour passes between two looks."""
    hours = iter(range(0, 3600 * 10**6, 3600))
    monkeypatch.setattr("specbuild.triton.heartbeat.monotonic", lambda: float(next(hours)))
    looks = threading.Semaphore(0)

    def turns() -> int:
        looks.release()
        return 1

    with metrics(turns) as url:
        heartbeat = Heartbeat(url, 1.0)
        for _ in range(3):
            assert looks.acquire(timeout=30)
        assert not heartbeat.stopped
        wait_for_stop(heartbeat)
    heartbeat.close()


def wait_for_stop(heartbeat: Heartbeat) -> None:
    for _ in range(3000):
        if heartbeat.stopped:
            return
        threading.Event().wait(0.01)
    raise AssertionError("it was not noticed")
