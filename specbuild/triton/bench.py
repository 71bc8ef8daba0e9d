"""How a running server does under load: the same prompts again and again, more and more of them at a time."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specbuild.runtime.generator import Prompt
from specbuild.runtime.sampling import SamplingParams

from .async_client import AsyncClient


@dataclass(frozen=True)
class Sample:
    """One answered request. Seconds."""

    first: float
    """Until its first token."""
    gaps: tuple[float, ...]
    """Between the responses after it."""
    tokens: int
    steps: int
    """Rounds."""


@dataclass(frozen=True)
class Load:
    """What one concurrency gave. Times in milliseconds."""

    concurrency: int
    requests: int
    tokens_per_second: float
    first_token_p50: float
    first_token_p95: float
    between_p50: float
    between_p95: float
    between_p99: float
    mean_acceptance_length: float
    """τ: tokens a round, of all requests together."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of ``values`` do not exceed (nearest rank); 0 of none."""
    return sorted(values)[max(0, -(-round(share * 1000) * len(values) // 1000) - 1)] if values else 0.0


def summary(concurrency: int, samples: Sequence[Sample], seconds: float) -> Load:
    """Of all requests at one concurrency, which took ``seconds`` together."""
    first = [sample.first * 1000 for sample in samples]
    gaps = [gap * 1000 for sample in samples for gap in sample.gaps]
    tokens = sum(sample.tokens for sample in samples)
    return Load(
        concurrency,
        len(samples),
        tokens / seconds,
        statistics.median(first),
        percentile(first, 0.95),
        percentile(gaps, 0.5),
        percentile(gaps, 0.95),
        percentile(gaps, 0.99),
        tokens / max(1, sum(sample.steps for sample in samples)),
    )


async def sweep(
    url: str, model: str, prompts: Sequence[Prompt], params: SamplingParams, concurrencies: Sequence[int], show: Callable[[str], None]
) -> list[Load]:
    """Every prompt once at each concurrency, after one that nobody counts."""
    loads = []
    async with AsyncClient(url, model) as client:
        await _ask(client, prompts[0], params)
        for concurrency in concurrencies:
            show(f"{len(prompts)} prompts, {concurrency} at a time")
            began = time.perf_counter()
            samples = await _together(client, prompts, params, concurrency)
            loads.append(summary(concurrency, samples, time.perf_counter() - began))
    return loads


async def _together(client: AsyncClient, prompts: Sequence[Prompt], params: SamplingParams, concurrency: int) -> list[Sample]:
    waiting = iter(prompts)
    samples: list[Sample] = []

    async def worker() -> None:
        samples.extend([await _ask(client, prompt, params) for prompt in waiting])

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return samples


async def _ask(client: AsyncClient, prompt: Prompt, params: SamplingParams) -> Sample:
    times = [time.perf_counter()]
    async with client.stream(prompt, params) as stream:
        times += [time.perf_counter() async for _ in stream]
        answer = stream.answer
    gaps = tuple(after - before for before, after in pairwise(times[1:]))
    return Sample(times[1] - times[0], gaps, len(answer.tokens), answer.figures["num_spec_steps"])
