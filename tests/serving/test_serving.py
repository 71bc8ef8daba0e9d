"""A server that dies is started again, not for ever; what is asked to stop stops."""

from __future__ import annotations

import threading

import pytest

from specbuild.errors import ServerError
from specbuild.triton.serving import Backoff, serve

QUICK = Backoff(first=0.001, longest=0.002, tries=3, settled=60, watch=0.001)


class Scripted:
    """A server that is well for so many looks, then dies."""

    def __init__(self, looks: int, log: list[str], *, starts: bool = True, ill: str = "it died") -> None:
        self.looks, self.log, self.starts, self.ill = looks, log, starts, ill

    def start(self) -> None:
        self.log.append("start")

    def wait_ready(self, *, end: threading.Event) -> None:
        if not self.starts:
            raise ServerError("port taken")

    @property
    def trouble(self) -> str | None:
        self.looks -= 1
        return None if self.looks >= 0 else self.ill

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
        def trouble(self) -> str | None:
            end.set()
            return None

    said = run([Scripted(2, log), Scripted(1, log, ill="it hangs"), Last(0, log)], end)
    assert log == ["start", "kill", "start", "kill", "start", "stop"]
    assert said == ["ready", "it died; starting it again in 0.001 s", "ready", "it hangs; starting it again in 0.002 s", "ready"]


def test_restarts_end() -> None:
    log: list[str] = []
    with pytest.raises(ServerError, match="it died; started 4 times without 60 s of work in between, it is given up"):
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


def test_one_that_is_asked_to_stop_before_it_is_ready_stops_without_a_word() -> None:
    log: list[str] = []
    end = threading.Event()

    class Loading(Scripted):
        def wait_ready(self, *, end: threading.Event) -> None:
            end.set()

    assert run([Loading(9, log)], end) == []
    assert log == ["start", "stop"]


def test_pauses_grow_to_a_bound() -> None:
    assert list(Backoff(first=1, longest=5, tries=5).pauses()) == [1, 2, 4, 5, 5]


def test_an_interrupt_stops_the_server() -> None:
    log: list[str] = []

    class Interrupted(Scripted):
        def wait_ready(self, *, end: threading.Event) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([Interrupted(0, log)], threading.Event())
    assert log == ["start", "stop"]
