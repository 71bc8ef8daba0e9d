"""Triton's Python module, a request and a service, as far as the backend knows them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.errors import SpecbuildError
from specbuild.runtime.generator import Completion, Delta, Prompt
from specbuild.runtime.logprobs import Logprobs
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.service import Sink
from specbuild.runtime.service_stats import ServiceStats
from specbuild.runtime.stats import RequestCounter
from specbuild.triton.fields import OUTPUTS
from specbuild.triton.kinds import Kind

FINAL = 1


class Tensor:
    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        return self._array


class TritonError(Exception):
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = range(4)

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Response:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.tensors = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or []}
        self.error = error


class Family:
    """Metrics by their labels; the server's way of refusing a counter that falls."""

    COUNTER, GAUGE = "counter", "gauge"
    made: dict[str, Family]

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.kind = kind
        # Processes that register one family share its samples.
        self.values = self.made[name].values if name in self.made else Counter[tuple[tuple[str, str], ...]]()
        self.made[name] = self

    def Metric(self, labels: Mapping[str, str]) -> Metric:  # noqa: N802  # Triton's name
        return Metric(self, tuple(sorted(labels.items())))


class Metric:
    def __init__(self, family: Family, key: tuple[tuple[str, str], ...]) -> None:
        self._family, self._key = family, key
        family.values[key] += 0

    def increment(self, value: float) -> None:
        assert self._family.kind == "gauge" or value >= 0
        self._family.values[self._key] += value  # type: ignore[assignment]


class Logger:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log_warn(self, line: str) -> None:
        self.lines.append(f"warning: {line}")

    def log_error(self, line: str) -> None:
        self.lines.append(f"error: {line}")


class FakeTriton:
    """Stands in for ``triton_python_backend_utils``."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    Tensor, InferenceResponse, TritonError = Tensor, Response, TritonError

    def __init__(self) -> None:
        self.MetricFamily = type("MetricFamily", (Family,), {"made": {}})
        self.Logger = Logger()


class Sender:
    """Keeps what is sent; more after the final flag is what Triton does not forgive."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.finals = 0
        self.gone = False
        self.done = threading.Event()

    def send(self, response: Response, flags: int) -> None:
        assert not self.finals, "nothing follows the final response"
        self.responses.append(response)
        self.finals += flags == FINAL
        if flags == FINAL:
            self.done.set()

    def is_cancelled(self) -> bool:
        return self.gone

    def wait(self) -> list[Response]:
        assert self.done.wait(10), "no final response came"
        return self.responses


class Request:
    def __init__(self, arrays: Mapping[str, NDArray[Any]], *, request_id: str = "", parameters: Mapping[str, Any] | None = None) -> None:
        self._arrays, self._id, self._parameters = arrays, request_id, parameters
        self.sender = Sender()

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self._arrays.items()]

    def request_id(self) -> str:
        return self._id

    def parameters(self) -> str:
        return json.dumps(self._parameters or {})

    def requested_output_names(self) -> list[str]:
        return [output.name for output in OUTPUTS]

    def get_response_sender(self) -> Sender:
        return self.sender


class FakeService:
    """Answers each prompt with its words, one a round; ``hold`` lets nothing end, ``refuse`` is raised by submit."""

    def __init__(self, *, hold: bool = False, refuse: SpecbuildError | None = None) -> None:
        self.hold, self.refuse = hold, refuse
        self.seen: list[tuple[Prompt, SamplingParams, int, float | None]] = []
        self.sinks: list[Sink] = []
        self.rejected = 0
        self.closed = False

    def submit(self, prompt: Prompt, params: SamplingParams, sink: Sink, *, priority: int = 0, timeout: float | None = None) -> object:
        if self.refuse is not None:
            raise self.refuse
        self.seen.append((prompt, params, priority, timeout))
        self.sinks.append(sink)
        words = str(prompt).split() if isinstance(prompt, str) else [str(token) for token in prompt]
        if not self.hold:
            for index, word in enumerate(words):
                sink.delta(delta(word, index, completion(words) if index == len(words) - 1 else None))
        return len(self.seen)

    def count_rejected(self) -> None:
        self.rejected += 1

    def stats(self) -> ServiceStats:
        return stats(requests=len(self.seen))

    def close(self) -> None:
        self.closed = True


def delta(text: str, token: int, end: Completion | None = None) -> Delta:
    return Delta(index=0, text=text, tokens=(token,), accepted=token % 2, drafted=2, logprobs=(Logprobs(token, -0.5, ()),), completion=end)


def completion(words: list[str]) -> Completion:
    tokens = tuple(range(len(words)))
    chances = tuple(Logprobs(token, -0.5, ()) for token in tokens)
    return Completion("".join(words), tokens, "stop", words[-1], 7, chances, RequestCounter(len(words)).freeze())


def stats(**counters: float) -> ServiceStats:
    return ServiceStats(1, 2, 30, 400, counters, Counter({0: 5, 1: 3}), Counter({0: 2, 4: 6}), {"ngram": False}, turns=9)


def tensor(kind: Kind, value: Any) -> NDArray[Any]:
    return np.asarray(kind.write(value))
