"""A server that dies is started again, not for ever; what is asked to stop stops."""

from __future__ import annotations

import threading

import pytest

from specbuild.errors import ServerError
from specbuild.triton.serving import Backoff, serve

QUICK = Backoff(first=0.001, longest=0.002, tries=3, settled=60, watch=0.001)


class Scripted:
    """A server that is healthy for so many looks."""

    def __init__(self, looks: int, log: list[str], *, starts: bool = True) -> None:
        self.looks, self.log, self.starts = looks, log, starts

    def start(self) -> None:
        self.log.append("start")

    def wait_ready(self) -> None:
        if not self.starts:
            raise ServerError("port taken")

    @property
    def healthy(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def stop(self, *, at_once: bool = False) -> None:
        self.log.append("kill" if at_once else "stop")


def run(servers: list[Scripted], end: threading.Event, backoff: Backoff = QUICK) -> list[str]:
    said: list[str] = []
    waiting = iter(servers)
    serve(lambda: next(waiting), end, say=said.append, ready=lambda: said.append("ready"), backoff=backoff)
    return said


def test_a_dead_server_is_killed_and_replaced() -> None:
    log: list[str] = []
    end = threading.Event()

    class Last(Scripted):
        @property
        def healthy(self) -> bool:
            end.set()
            return True

    said = run([Scripted(2, log), Last(0, log)], end)
    assert log == ["start", "kill", "start", "stop"]
    assert said == ["ready", "a process of the server died; starting it again in 0.001 s", "ready"]


def test_restarts_end() -> None:
    log: list[str] = []
    with pytest.raises(ServerError, match="died 4 times without 60 s of work in between; given up"):
        run([Scripted(1, log) for _ in range(9)], threading.Event())
    assert log.count("start") == 4


def test_a_server_that_worked_for_long_has_all_its_restarts_again() -> None:
    log: list[str] = []
    with pytest.raises(StopIteration):
        run([Scripted(1, log) for _ in range(9)], threading.Event(), Backoff(0.001, 0.001, tries=2, settled=0.0, watch=0.0))
    assert log.count("start") == 9


def test_one_that_never_started_is_not_tried_again() -> None:
    log: list[str] = []
    with pytest.raises(ServerError, match="port taken"):
        run([Scripted(0, log, starts=False)], threading.Event())
    assert log == ["start", "stop"]


def test_one_that_does_not_come_back_is_tried_again() -> None:
    log: list[str] = []
    with pytest.raises(ServerError, match="given up"):
        run([Scripted(1, log), *(Scripted(1, log, starts=False) for _ in range(3))], threading.Event())
    assert log == ["start", "kill"] * 4


def test_pauses_grow_to_a_bound() -> None:
    assert list(Backoff(first=1, longest=5, tries=5).pauses()) == [1, 2, 4, 5, 5]


def test_an_interrupt_stops_the_server() -> None:
    log: list[str] = []

    class Interrupted(Scripted):
        def wait_ready(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([Interrupted(0, log)], threading.Event())
    assert log == ["start", "stop"]
