"""Many clients for minutes, a third of which leave at any moment; some have deadlines, some are processes that are killed."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from watch import Balance, Footprint, counters, settled

from specbuild.errors import SpecbuildError, TimedOutError
from specbuild.runtime.generator import Prompt
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import AsyncClient
from specbuild.triton.server import TritonServer

CONCURRENCY = 32
LEAVING, HURRIED = 1 / 3, 0.15
"""Shares of the requests."""
KILL_EVERY, SAMPLE_EVERY = 10.0, 10.0
WARM_UP = 60.0
"""Seconds; the first of them, and this, no more than a tenth and a fifth of the whole."""
TOLERANCE = 0.02
"""Of resident memory."""
STREAMS = 3
"""Of a client that is killed."""


class Asked(Protocol):
    """A question with the answer that is right."""

    @property
    def prompt(self) -> Prompt: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def text(self) -> tuple[str, tuple[int, ...]]: ...


async def endless(url: str) -> None:
    """A process whose streams run until it is killed, long ones: a fast server is in the middle of them; says a line when all do."""
    params = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True, speculation="off")
    running = 0
    async with AsyncClient(url) as client:

        async def one(number: int) -> None:
            nonlocal running
            while True:
                async with client.stream(f"{number} and", params, priority=-1) as stream:
                    async for _ in stream:
                        running += 1
                        if running == STREAMS:
                            print("running", flush=True)

        await asyncio.gather(*(one(number) for number in range(STREAMS)))


class Soak:
    """One run. Whatever tokens arrive of an answer, also of one that is left, must be the right ones."""

    def __init__(self, server: TritonServer, questions: Sequence[Asked], seconds: float) -> None:
        self._server, self._questions, self._seconds = server, questions, seconds
        self._url = f"{server.ports.host}:{server.ports.grpc}"
        self._pids = (server.pid, *server.stubs())
        self._random = random.Random(0)
        self._end = 0.0
        self._usual = 1.0
        """Seconds that the last whole answer took: what a random moment is a share of."""
        self._balance = Balance()
        self._seen: Counter[str] = Counter()
        self._footprints: list[tuple[float, Footprint]] = []
        self._problems: Counter[str] = Counter()

    async def run(self) -> dict[str, Any]:
        """What was seen, with ``problems``, one sentence each."""
        began = time.monotonic()
        self._end = began + self._seconds
        async with AsyncClient(self._url) as client:
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(self._client(client))
                group.create_task(self._killer())
                group.create_task(self._watch(began))
            metrics = await asyncio.to_thread(settled, self._server.ports)
            ready = await client.ready()
        warm, end = self._footprints[0][1], Footprint.of(self._pids)
        growth = end.mebibytes / warm.mebibytes - 1
        problems = [f"{count} × {what}" for what, count in self._problems.items()]
        problems += self._balance.differences(metrics, others=True)
        if abs(growth) > TOLERANCE:
            problems.append(f"resident memory went from {warm.mebibytes:.0f} to {end.mebibytes:.0f} MiB, {growth:+.1%}")
        if end.threads != warm.threads:
            problems.append(f"threads went from {warm.threads} to {end.threads}: {warm.differences(end)}")
        if not ready:
            problems.append("the model is not ready")
        return {
            "seconds": self._seconds,
            "concurrency": CONCURRENCY,
            "seen": dict(self._seen),
            "sums": self._balance.sums,
            "counters": counters(metrics),
            "memory_mib": [round(footprint.mebibytes, 1) for _, footprint in self._footprints] + [round(end.mebibytes, 1)],
            "memory_growth": round(growth, 4),
            "threads": [footprint.threads for _, footprint in self._footprints] + [end.threads],
            "problems": problems,
        }

    async def _client(self, client: AsyncClient) -> None:
        while time.monotonic() < self._end:
            question, roll = self._random.choice(self._questions), self._random.random()
            moment = self._random.uniform(0.01, 1.0) * self._usual
            try:
                if roll < LEAVING:
                    await self._leave(client, question, moment)
                elif roll < LEAVING + HURRIED:
                    await self._whole(client, question, moment)
                else:
                    await self._whole(client, question, None)
            except TimedOutError:
                self._seen["timed_out"] += 1
            except SpecbuildError as error:
                self._problems[f"{type(error).__name__}: {error}"] += 1

    async def _whole(self, client: AsyncClient, question: Asked, timeout: float | None) -> None:
        began = time.monotonic()
        async with client.stream(question.prompt, question.params, timeout=timeout) as stream:
            async for _ in stream:
                pass
        answer = stream.answer
        self._usual = time.monotonic() - began
        self._seen["answered"] += 1
        self._seen["tokens"] += len(answer.tokens)
        self._balance.add(answer.figures)
        if (answer.text, answer.tokens) != question.text:
            self._problems["an answer is not that of plain decoding"] += 1

    async def _leave(self, client: AsyncClient, question: Asked, moment: float) -> None:
        tokens: tuple[int, ...] = ()
        async with client.stream(question.prompt, question.params) as stream:
            with suppress(TimeoutError):
                async with asyncio.timeout(moment):
                    async for chunk in stream:
                        tokens += chunk.tokens
        self._seen["left_with_tokens" if tokens else "left_before_any"] += 1
        if tokens != question.text[1][: len(tokens)]:
            self._problems["a stream that was left is not the beginning of plain decoding"] += 1

    async def _killer(self) -> None:
        """A process with running streams, killed a random while after all of them run."""
        script = Path(__file__).with_name("served.py")
        while time.monotonic() < self._end:
            process = await asyncio.create_subprocess_exec(
                sys.executable, script, "--endless", self._url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            try:
                assert process.stdout is not None, "a pipe"
                running = await asyncio.wait_for(process.stdout.readline(), 120)
                await asyncio.sleep(self._random.uniform(0, 0.5))
            finally:
                process.kill()
                await process.wait()
            if running:
                self._seen["killed"] += 1
            else:
                self._problems["the client that was to be killed ended by itself"] += 1
            await asyncio.sleep(max(0.0, min(KILL_EVERY, self._seconds / 10, self._end - time.monotonic())))

    async def _watch(self, began: float) -> None:
        await asyncio.sleep(min(WARM_UP, self._seconds / 5))
        while time.monotonic() < self._end:
            self._footprints.append((time.monotonic() - began, Footprint.of(self._pids)))
            await asyncio.sleep(min(SAMPLE_EVERY, max(0.0, self._end - time.monotonic())))
