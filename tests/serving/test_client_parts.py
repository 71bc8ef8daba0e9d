"""Errors come back as the errors that they were; loads are summed up rightly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from specbuild.errors import BusyError, CancelledError, RequestError, ServerError, SpecbuildError, TimedOutError, UsageError
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton.async_client import AsyncStream
from specbuild.triton.bench import Load, Sample, percentile, summary
from specbuild.triton.faults import from_wire, to_triton
from specbuild.triton.wire import tensors


@pytest.mark.parametrize("error", [TimedOutError("late"), CancelledError("gone"), BusyError("9 wait"), RequestError("top_k is -1")])
def test_an_error_survives_the_wire(error: SpecbuildError) -> None:
    _, message = to_triton(error)
    back = from_wire(message)
    assert (type(back), str(back)) == (type(error), str(error))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("StatusCode.UNAVAILABLE", "Connection refused"),
        ("StatusCode.UNAVAILABLE", "busy: x"),
        (None, "internal error: what"),
        (None, "what"),
    ],
)
def test_what_the_server_did_not_mean_is_its_failure(status: str | None, message: str) -> None:
    back = from_wire(message, status)
    assert isinstance(back, ServerError)
    assert message in str(back)


def test_the_clients_own_deadline() -> None:
    assert isinstance(from_wire("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED"), TimedOutError)


def test_a_number_too_large_for_its_tensor_is_refused_before_it_is_sent() -> None:
    with pytest.raises(UsageError, match="input_ids cannot be sent"):
        tensors([2**40], SamplingParams(), streaming=True, priority=0, timeout=None)


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.01, 0.5, 0.95, 0.99, 1.0)] == [1, 50, 95, 99, 100]
    assert percentile([3.0], 0.5) == 3
    assert percentile([], 0.5) == 0


def test_a_load_is_of_all_its_requests_together() -> None:
    samples = [
        Sample(0.125, ((0.25, 1), (0.5, 4)), 6, (0, 0, 4), (0, 0, 3)),
        Sample(0.375, ((0.75, 1),), 2, (4, 0), (0, 0)),
        Sample(0.25, (), 1, (0,), (0,)),
    ]
    load = summary(2, [samples[0], BusyError("9 wait"), *samples[1:], BusyError("9 wait"), TimedOutError("late")], seconds=2.0)
    assert load == Load(
        concurrency=2,
        requests=3,
        errors={"busy": 2, "deadline exceeded": 1},
        tokens_per_second=4.5,
        first_token_p50=250,
        first_token_p95=375,
        between_p50=500,
        between_p95=750,
        between_p99=750,
        token_p50=125,
        token_p95=750,
        mean_acceptance_length=1.5,
        acceptance_rate=0.375,
        draft_lens={0: 4 / 6, 4: 2 / 6},
    )


def test_a_load_of_errors_alone() -> None:
    load = summary(1, [ServerError("gone")], seconds=1.0)
    assert (load.requests, load.errors, load.tokens_per_second, load.token_p95, load.draft_lens) == (0, {"internal error": 1}, 0, 0, {})


class Silent:
    """A client library whose server ends a stream without a word."""

    async def stream_infer(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        for nothing in ():
            yield nothing


def test_a_stream_that_ends_too_soon_is_an_error() -> None:
    async def ask() -> None:
        async with AsyncStream(Silent(), "specbuild", {}, None) as stream:
            await anext(stream)

    with pytest.raises(ServerError, match="before its answer was whole"):
        asyncio.run(ask())
