"""What a request asks of the server, and asking it: each choice is a request of its own, and they run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from specbuild.errors import CancelledError
from specbuild.runtime.sampling import SamplingParams

from ..async_client import AsyncClient
from ..wire import Answer, Chunk

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Job:
    """Requests to the server."""

    choices: tuple[tuple[tuple[int, ...], SamplingParams], ...]
    """Prompt and parameters of each choice; those of one prompt stand in a row."""
    n: int
    """Choices of each prompt."""
    priority: int = 0
    timeout: float | None = None
    """Seconds."""

    async def answers(self, client: AsyncClient) -> list[Answer]:
        """Whole, in order.

        Raises:
            SpecbuildError: of the first that fails; the others are cancelled.
        """
        return await together(
            client.generate(prompt, params, priority=self.priority, timeout=self.timeout) for prompt, params in self.choices
        )

    async def stream(self, client: AsyncClient, take: Callable[[int, Chunk | Answer], Awaitable[None]]) -> list[Answer]:
        """As ``answers``, and as they come: ``take`` is given the choice's index with each of its chunks, then with its answer."""

        async def one(index: int, prompt: tuple[int, ...], params: SamplingParams) -> Answer:
            async with client.stream(prompt, params, priority=self.priority, timeout=self.timeout) as stream:
                async for chunk in stream:
                    await take(index, chunk)
                await take(index, stream.answer)
                return stream.answer

        return await together(one(index, *choice) for index, choice in enumerate(self.choices))


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order; the first error ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client that ``receive`` hears of leaves.

    Raises:
        CancelledError: it has left.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CancelledError("the client has gone")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
