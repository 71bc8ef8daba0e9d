"""How a running server does under load: the same prompts again and again, more and more of them at a time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specbuild.errors import ServerError, SpecbuildError
from specbuild.runtime.generator import Prompt
from specbuild.runtime.sampling import SamplingParams

from .async_client import AsyncClient
from .faults import kind


@dataclass(frozen=True)
class Sample:
    """One answered request. Seconds."""

    first: float
    """Until its first token."""
    gaps: tuple[tuple[float, int], ...]
    """Of each response after it: the time since the one before, and its tokens."""
    tokens: int
    drafted: tuple[int, ...]
    """Draft tokens of each round."""
    accepted: tuple[int, ...]
    """Of them, those that were accepted."""


@dataclass(frozen=True)
class Load:
    """What one concurrency gave. Times in milliseconds."""

    concurrency: int
    requests: int
    """Answered to the end."""
    errors: dict[str, int]
    """Kind → requests that ended so."""
    tokens_per_second: float
    first_token_p50: float
    first_token_p95: float
    between_p50: float
    """Between rounds, as far as the client sees them: from response to response."""
    between_p95: float
    between_p99: float
    token_p50: float
    """Between tokens: a round that gave n tokens after a gap of g counts n times g/n."""
    token_p95: float
    mean_acceptance_length: float
    """τ: tokens a round, of all requests together."""
    acceptance_rate: float
    """Accepted / drafted tokens."""
    draft_lens: dict[int, float]
    """Draft tokens of a round → share of all rounds."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of ``values`` do not exceed (nearest rank); 0 of none."""
    return sorted(values)[max(0, -(-round(share * 1000) * len(values) // 1000) - 1)] if values else 0.0


def summary(concurrency: int, outcomes: Sequence[Sample | SpecbuildError], seconds: float) -> Load:
    """Of all requests at one concurrency, which took ``seconds`` together."""
    samples = [outcome for outcome in outcomes if isinstance(outcome, Sample)]
    first = [sample.first * 1000 for sample in samples]
    rounds = [(gap * 1000, tokens) for sample in samples for gap, tokens in sample.gaps]
    between = [gap for gap, _ in rounds]
    by_token = [gap / tokens for gap, tokens in rounds for _ in range(tokens)]
    tokens = sum(sample.tokens for sample in samples)
    drafted = Counter(length for sample in samples for length in sample.drafted)
    accepted = sum(sum(sample.accepted) for sample in samples)
    return Load(
        concurrency=concurrency,
        requests=len(samples),
        errors=dict(Counter(kind(outcome) for outcome in outcomes if isinstance(outcome, SpecbuildError))),
        tokens_per_second=tokens / seconds,
        first_token_p50=percentile(first, 0.5),
        first_token_p95=percentile(first, 0.95),
        between_p50=percentile(between, 0.5),
        between_p95=percentile(between, 0.95),
        between_p99=percentile(between, 0.99),
        token_p50=percentile(by_token, 0.5),
        token_p95=percentile(by_token, 0.95),
        mean_acceptance_length=tokens / max(1, drafted.total()),
        acceptance_rate=accepted / max(1, sum(drafted.elements())),
        draft_lens={length: count / drafted.total() for length, count in sorted(drafted.items())},
    )


async def sweep(
    url: str, model: str, prompts: Sequence[Prompt], params: SamplingParams, concurrencies: Sequence[int], show: Callable[[str], None]
) -> list[Load]:
    """Every prompt once at each concurrency, after one that nobody counts.

    Raises:
        ServerError: there is no such server. What goes wrong later is counted.
    """
    loads = []
    async with AsyncClient(url, model) as client:
        if isinstance(warm_up := await _ask(client, prompts[0], params), ServerError):
            raise warm_up
        for concurrency in concurrencies:
            show(f"{len(prompts)} prompts, {concurrency} at a time")
            began = time.perf_counter()
            outcomes = await _together(client, prompts, params, concurrency)
            loads.append(summary(concurrency, outcomes, time.perf_counter() - began))
    return loads


async def _together(
    client: AsyncClient, prompts: Sequence[Prompt], params: SamplingParams, concurrency: int
) -> list[Sample | SpecbuildError]:
    waiting = iter(prompts)
    outcomes: list[Sample | SpecbuildError] = []

    async def worker() -> None:
        outcomes.extend([await _ask(client, prompt, params) for prompt in waiting])

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return outcomes


async def _ask(client: AsyncClient, prompt: Prompt, params: SamplingParams) -> Sample | SpecbuildError:
    asked = time.perf_counter()
    try:
        async with client.stream(prompt, params) as stream:
            chunks = [(time.perf_counter(), len(chunk.tokens)) async for chunk in stream]
            answer = stream.answer
    except SpecbuildError as error:
        return error
    gaps = tuple((after - before, tokens) for (before, _), (after, tokens) in pairwise(chunks))
    figures = answer.figures
    return Sample(chunks[0][0] - asked, gaps, len(answer.tokens), tuple(figures["per_step_drafted"]), tuple(figures["per_step_accepted"]))
