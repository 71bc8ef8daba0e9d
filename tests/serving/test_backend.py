"""Requests in, responses out: exactly one final response each, whatever happens, and nobody harms a neighbour."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_triton import FakeService, FakeTriton, Request, Response, Sender, TritonError, completion, delta, tensor

from specbuild.errors import BundleError, BusyError, CancelledError, RequestError, SpecbuildError, TimedOutError, UsageError
from specbuild.triton.backend import Backend, bundle_path, check_parameters
from specbuild.triton.fields import BY_NAME

Make = Callable[..., Backend]


class Letters:
    """A tokenizer whose tokens are bytes."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode())


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Backend] = []

    def build(service: FakeService, pb: FakeTriton | None = None) -> Backend:
        made.append(Backend(pb or FakeTriton(), service, Letters(), 100, "specbuild"))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for backend in made:
        backend.close()


def request(request_id: str = "", parameters: dict[str, Any] | None = None, **values: Any) -> Request:
    return Request(
        {name: tensor(BY_NAME[name].kind, value) for name, value in values.items()}, request_id=request_id, parameters=parameters
    )


def texts(responses: list[Response]) -> list[str]:
    return [response.tensors["text_output"][0].decode() for response in responses]


def error(responses: list[Response]) -> tuple[int, str]:
    assert len(responses) == 1
    assert responses[0].error is not None
    return responses[0].error.code, str(responses[0].error)


def test_streamed_and_whole(make: Make) -> None:
    backend = make(FakeService())
    streamed, whole = (
        request(text_input=["a b c"], streaming=True),
        request(text_input=["a b c"], return_finish_reason=True, return_stop_reason=True),
    )
    backend.execute([streamed, whole])
    assert texts(streamed.sender.wait()) == ["a", "b", "c"]
    assert texts(whole.sender.wait()) == ["abc"]
    assert whole.sender.responses[0].tensors["output_ids"].tolist() == [0, 1, 2]
    assert whole.sender.responses[0].tensors["finish_reason"].tolist() == [b"stop"]
    assert whole.sender.responses[0].tensors["stop_reason"].tolist() == [b"c"]
    assert (streamed.sender.finals, whole.sender.finals) == (1, 1)


def test_the_prompt_comes_first_where_it_is_asked_for(make: Make) -> None:
    backend = make(FakeService())
    for streaming in (True, False):
        asked = request(text_input=["a b"], streaming=streaming, sampling_param_exclude_input_from_output=False)
        backend.execute([asked])
        assert "".join(texts(asked.sender.wait())) == "a bab"


def test_figures_come_with_the_last_response(make: Make) -> None:
    asked = request(text_input=["a b c"], streaming=True, sampling_param_return_perf_metrics=True)
    make(FakeService()).execute([asked])
    *before, last = asked.sender.wait()
    assert all(response.tensors.keys() == {"text_output", "output_ids"} for response in before)
    assert last.tensors["per_step_accepted"].tolist() == [0, 1, 0]
    assert last.tensors["per_step_drafted"].tolist() == [2, 2, 2]
    assert last.tensors["acceptance_histogram"].tolist() == [2, 1]
    assert last.tensors["seed"].tolist() == [7]
    assert last.tensors["lossy"].tolist() == [b""]
    times = [last.tensors[name][0] for name in ("arrival_time_ns", "first_token_time_ns", "last_token_time_ns")]
    assert times == sorted(times)


def test_asking_that_once_took_long_is_not_put_off_for_long(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine stood still meanwhile: the next time is a second later, not twenty times as long."""
    asked, times = request(text_input=["a"]), []

    def is_cancelled() -> bool:
        times.append(time.monotonic())
        time.sleep(0.3 if len(times) == 1 else 0)
        return len(times) > 1

    monkeypatch.setattr(asked.sender, "is_cancelled", is_cancelled)
    make(FakeService(hold=True)).execute([asked])
    deadline = time.monotonic() + 4
    while len(times) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(times) == 2


def test_log_probabilities_come_with_their_tokens(make: Make) -> None:
    streamed, whole = (
        request(text_input=["a b c"], streaming=streaming, sampling_param_logprobs=0, return_cumulative_logprob=True)
        for streaming in (True, False)
    )
    make(FakeService()).execute([streamed, whole])
    each = [{"token": token, "logprob": -0.5, "top": []} for token in range(3)]
    assert [json.loads(response.tensors["logprobs"][0]) for response in streamed.sender.wait()] == [[one] for one in each]
    assert [response.tensors["cumulative_logprob"].tolist() for response in streamed.sender.responses] == [[-0.5], [-1.0], [-1.5]]
    [response] = whole.sender.wait()
    assert (json.loads(response.tensors["logprobs"][0]), response.tensors["cumulative_logprob"].tolist()) == (each, [-1.5])


def test_a_bad_request_among_good_ones(make: Make) -> None:
    service = FakeService()
    good = [request(text_input=["a b"]) for _ in range(3)]
    bad = [
        request(text_input=["x"], sampling_param_top_k=-1),
        request(text_input=["x"], parameters={"sampling_param_topk": 3}),
        Request({"text_input": np.array([b"\xff"], dtype=np.object_)}),
    ]
    make(service).execute([good[0], bad[0], good[1], bad[1], bad[2], good[2]])
    assert [texts(one.sender.wait()) for one in good] == [["ab"]] * 3
    assert [error(one.sender.wait())[0] for one in bad] == [TritonError.INVALID_ARG] * 3
    assert (len(service.seen), service.rejected) == (3, 3)


@pytest.mark.parametrize(
    ("refusal", "code", "message"),
    [
        (RequestError("no"), TritonError.INVALID_ARG, "invalid argument: no"),
        (UsageError("no"), TritonError.INVALID_ARG, "invalid argument: no"),
        (BusyError("9 wait"), TritonError.UNAVAILABLE, "busy: 9 wait"),
        (CancelledError("closing"), TritonError.CANCELLED, "cancelled: closing"),
        (TimedOutError("late"), TritonError.CANCELLED, "deadline exceeded: late"),
        (SpecbuildError("broken"), TritonError.INTERNAL, "internal error: broken"),
        (ZeroDivisionError("oops"), TritonError.INTERNAL, "internal error: ZeroDivisionError: oops"),
    ],
)
def test_codes(make: Make, refusal: Exception, code: int, message: str) -> None:
    asked = request(text_input=["x"])
    make(FakeService(refuse=refusal)).execute([asked])  # type: ignore[arg-type]
    assert error(asked.sender.wait()) == (code, message)


def test_an_error_in_mid_stream_is_the_last_response(make: Make) -> None:
    service = FakeService(hold=True)
    asked = request(text_input=["x"], streaming=True)
    make(service).execute([asked])
    service.sinks[0].delta(delta("a", 1))
    service.sinks[0].failed(TimedOutError("late"))
    service.sinks[0].failed(CancelledError("twice"))
    first, last = asked.sender.wait()
    assert texts([first]) == ["a"]
    assert last.error is not None
    assert str(last.error) == "deadline exceeded: late"


def test_a_client_that_leaves_is_noticed(make: Make) -> None:
    service = FakeService(hold=True)
    stays, leaves = request(text_input=["x"]), request(text_input=["y"])
    make(service).execute([stays, leaves])
    leaves.sender.gone = True
    until(service.sinks[1].cancelled)
    assert not service.sinks[0].cancelled()


def test_no_response_waits_for_more_than_one_question(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question to Triton is a way to another process: with many requests they add up."""
    service = FakeService(hold=True)
    log: list[str] = []

    def ask(sender: Sender) -> bool:
        log.append("ask")
        service.sinks[0].delta(delta("a", 1))
        return False

    monkeypatch.setattr(Sender, "is_cancelled", ask)
    monkeypatch.setattr(Sender, "send", lambda *_, **flags: log.append("send"))
    make(service).execute([request(text_input=["x"], streaming=True) for _ in range(8)])
    until(lambda: len(log) > 40)
    assert "ask ask" not in " ".join(log)


def test_stop_ends_the_request_of_that_id(make: Make) -> None:
    service = FakeService(hold=True)
    backend = make(service)
    backend.execute([request("one", text_input=["x"]), request("two", text_input=["y"])])
    stop = request("two", stop=True)
    backend.execute([stop])
    assert error(stop.sender.wait()) == (TritonError.CANCELLED, "cancelled: request 'two' was asked to end")
    assert [sink.cancelled() for sink in service.sinks] == [False, True]
    nameless = request(stop=True)
    backend.execute([nameless])
    assert error(nameless.sender.wait())[0] == TritonError.INVALID_ARG


def test_a_sender_that_fails_ends_its_own_request(make: Make) -> None:
    service = FakeService(hold=True)
    broken, whole = request(text_input=["x"], streaming=True), request(text_input=["y"])
    broken.sender.finals = 1
    make(service).execute([broken, whole])
    service.sinks[0].delta(delta("a", 1))
    service.sinks[1].delta(delta("b", 1, completion(["b"])))
    assert texts(whole.sender.wait()) == ["b"]
    assert service.sinks[0].cancelled()


def test_metrics_follow_the_service(make: Make) -> None:
    pb = FakeTriton()
    service = FakeService()
    backend = make(service, pb)
    backend.execute([request(text_input=["a b"])])
    families = pb.MetricFamily.made  # type: ignore[attr-defined]
    until(lambda: families["specbuild_requests"].values[(("model", "specbuild"),)] == 1 if "specbuild_requests" in families else False)


def test_closing_ends_the_service_and_the_thread() -> None:
    service = FakeService()
    Backend(FakeTriton(), service, Letters(), 100, "specbuild").close()  # type: ignore[arg-type]
    assert service.closed


def test_what_the_runtime_logs_is_in_tritons_log(make: Make) -> None:
    pb, log = FakeTriton(), logging.getLogger("specbuild.runtime.service")
    backend = make(FakeService(), pb)
    log.info("nothing of note")
    log.warning("none of %d", 3)
    log.error("broken")
    backend.close()
    log.warning("nobody listens")
    assert pb.Logger.lines == ["warning: none of 3", "error: broken"]


def test_which_bundle(tmp_path: Any) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    assert bundle_path({"bundle": str(here)}, {"SPECBUILD_BUNDLE": str(there)}) == here
    assert bundle_path({}, {"SPECBUILD_BUNDLE": str(here)}) == here
    with pytest.raises(BundleError, match=f"there is no bundle at {there}"):
        bundle_path({}, {"SPECBUILD_BUNDLE": str(there)})
    with pytest.raises(BundleError, match="set SPECBUILD_BUNDLE"):
        bundle_path({}, {})


def test_parameters_are_whole_numbers() -> None:
    assert check_parameters({"threads": "2", "remember": "0", "bundle": "x"}) == {"threads": 2, "remember": 0}
    with pytest.raises(UsageError, match=r"the parameter threads is '0', but must be a whole number, at least 1"):
        check_parameters({"threads": "0"})


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
