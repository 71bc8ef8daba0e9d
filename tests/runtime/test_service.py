"""The service: whoever asks, whenever they leave, the answers are those of plain decoding and nothing stays held."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from toy_engine import VOCABULARY, Toys, toys

from specbuild.errors import BusyError, CancelledError, RequestError, SpecbuildError, TimedOutError
from specbuild.runtime.generator import Completion, Delta
from specbuild.runtime.request import Emission
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.service import Service

__all__ = ["toys"]


@dataclass
class Client:
    """Collects one answer; leaves after ``patience`` deltas."""

    patience: int = 10**9
    deltas: list[Delta] = field(default_factory=list)
    error: SpecbuildError | None = None
    ends: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def delta(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.completion is not None:
            self._end()

    def failed(self, error: SpecbuildError) -> None:
        self.error = error
        self._end()

    def cancelled(self) -> bool:
        return len(self.deltas) >= self.patience

    def _end(self) -> None:
        self.ends += 1
        self.done.set()

    @property
    def completion(self) -> Completion:
        assert self.done.wait(30)
        completion = self.deltas[-1].completion
        assert completion is not None, self.error
        return completion


def service_of(toys: Toys, **options: Any) -> Service:
    return Service(toys.generator(interactive=True, remember=4096), **options)


def requests(count: int, seed: int) -> list[tuple[list[int], SamplingParams]]:
    draw = random.Random(seed)
    shared = [draw.randrange(VOCABULARY) for _ in range(40)]
    made = []
    for number in range(count):
        start = shared[: draw.randrange(32, 37)] if draw.random() < 0.5 else []
        prompt = start + [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 4))]
        method = draw.choice(["off", "ngram", "draft_model"])
        temperature = draw.choice([0.0, 0.9])
        made.append((prompt, SamplingParams(temperature=temperature, seed=number, max_tokens=draw.randrange(1, 9), speculation=method)))
    return made


def test_answers_are_those_of_plain_decoding_whoever_leaves(toys: Toys) -> None:
    plain = toys.generator()
    service = service_of(toys)
    asked = requests(60, seed=1)
    draw = random.Random(2)
    clients = [Client(patience=draw.randrange(1, 4) if draw.random() < 0.3 else 10**9) for _ in asked]
    threads = [
        threading.Thread(target=lambda part: [service.submit(*asked[i], clients[i]) for i in part], args=(range(start, 60, 4),))
        for start in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = 0
    for (prompt, params), client in zip(asked, clients, strict=True):
        assert client.done.wait(60)
        assert client.ends == 1
        [expected] = plain.generate([prompt], params)
        tokens = tuple(token for delta in client.deltas for token in delta.tokens)
        if client.error is None:
            assert client.completion.token_ids == tokens == expected.token_ids
            assert client.completion.text == "".join(delta.text for delta in client.deltas) == expected.text
        else:
            left += 1
            assert isinstance(client.error, CancelledError)
            assert tokens == expected.token_ids[: len(tokens)]
    assert left > 0, "nobody left: the test shows nothing"
    service.close()
    service.check()
    stats = service.stats()
    assert (stats.queued, stats.running, stats.kv_used_tokens) == (0, 0, 0)
    assert stats.counters["requests"] == 60 == stats.counters["completed"] + stats.counters["cancelled"]
    assert stats.counters["cancelled"] == left
    assert stats.counters["emitted_tokens"] == sum(len(delta.tokens) for client in clients for delta in client.deltas)
    assert stats.counters["accepted_tokens"] == sum(stats.accepted_by_position.values())
    assert stats.counters["reused_tokens"] > 0


def test_a_full_queue_says_so_and_a_bad_request_never_enters_it(toys: Toys) -> None:
    """Whatever is submitted is counted once: as taken, as impossible or as too much."""

    class Slow(Client):
        def delta(self, delta: Delta) -> None:
            entered.set()
            assert go_on.wait(30)
            super().delta(delta)

    entered, go_on = threading.Event(), threading.Event()
    service, clients, params = service_of(toys, queue_limit=2), [Slow(), Client(), Client()], SamplingParams(max_tokens=2, ignore_eos=True)
    service.submit([1, 2], params, clients[0])
    assert entered.wait(30)
    for client in clients[1:]:
        service.submit([1, 2], params, client)
    for _ in range(3):
        with pytest.raises(BusyError, match="2 requests are waiting; try again later"):
            service.submit([1, 2], params, Client())
    for impossible in ({"max_tokens": 1000}, {"speculation": "nothing"}):
        with pytest.raises(RequestError):
            service.submit([1, 2], SamplingParams(**impossible), Client())
    service.count_rejected()
    go_on.set()
    assert [len(client.completion.token_ids) for client in clients] == [2, 2, 2]
    service.close()
    with pytest.raises(BusyError, match="the service is closing"):
        service.submit([1, 2], params, Client())
    counters = service.stats().counters
    assert {name: counters[name] for name in ("requests", "completed", "busy", "rejected")} == {
        "requests": 3,
        "completed": 3,
        "busy": 4,
        "rejected": 3,
    }


def test_a_request_that_takes_too_long_ends_wherever_it_is(toys: Toys) -> None:
    service, client = service_of(toys), Client()
    service.submit([1, 2], SamplingParams(max_tokens=20), client, timeout=0.0)
    assert client.done.wait(30)
    assert isinstance(client.error, TimedOutError)
    service.close()
    service.check()


def test_closing_ends_what_runs(toys: Toys) -> None:
    service = service_of(toys)
    clients = [Client() for _ in range(12)]
    for number, client in enumerate(clients):
        service.submit([1, 2, number + 1], SamplingParams(max_tokens=40, ignore_eos=True), client)
    service.close()
    assert all(client.ends == 1 for client in clients)
    service.check()
    with pytest.raises(BusyError, match="closing"):
        service.submit([1], SamplingParams(max_tokens=1), Client())


def test_a_sink_that_raises_harms_nobody(toys: Toys) -> None:
    class Broken(Client):
        def delta(self, delta: Delta) -> None:
            raise RuntimeError("broken")

    service, good = service_of(toys), Client()
    service.submit([1, 2], SamplingParams(max_tokens=4), Broken())
    service.submit([1, 2], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True), good)
    assert len(good.completion.token_ids) == 4
    service.close()


def test_a_thread_without_work_takes_turns_and_one_that_hangs_does_not(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbuild.runtime.service.IDLE_SECONDS", 0.01)
    service = service_of(toys)
    until(lambda: service.stats().turns > 3)
    stuck, free = threading.Event(), threading.Event()

    def hang() -> list[Emission]:
        stuck.set()
        free.wait(30)
        return []

    monkeypatch.setattr(service.generator.loop, "round", hang)
    client = Client()
    service.submit([1, 2], SamplingParams(seed=1, max_tokens=2), client)
    assert stuck.wait(30)
    turns = service.stats().turns
    assert not client.done.wait(0.2)
    assert service.stats().turns == turns
    free.set()
    until(lambda: service.stats().turns > turns + 3)
    service.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)
