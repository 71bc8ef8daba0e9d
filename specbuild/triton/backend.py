"""The model that Triton runs: requests in, the service's answers out. Triton's Python module is given, so that a test can give another."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from specbuild.errors import BundleError, CancelledError, RequestError, ServerError, SpecbuildError, UsageError
from specbuild.runtime.generator import Prompt
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.service import Sink
from specbuild.runtime.service_stats import ServiceStats
from specbuild.runtime.tokenizer import Tokenizer

from .call import Call, parse
from .exchange import Exchange
from .fields import BY_NAME
from .latencies import Latencies
from .log import TritonLog
from .metrics import Recorder
from .post import Post

BUNDLE = "SPECBUILD_BUNDLE"
LONGEST_TOKEN = 128
"""Bytes: more than a token has in any vocabulary in use. A prompt above this times the sequence's length cannot fit."""
METRICS_SECONDS = 0.5
QUEUE_LIMIT = 256
REMEMBER = 8192
"""Tokens of past texts whose KV is kept for requests that begin alike."""
NUMBERS = {"batch": 1, "threads": 1, "queue_limit": 1, "remember": 0}
"""Parameters that config.pbtxt may set, and the least of each."""
PARAMETERS = ("bundle", *NUMBERS)


class Server(Protocol):
    """What the backend needs of a service."""

    def submit(self, prompt: Prompt, params: SamplingParams, sink: Sink, *, priority: int = 0, timeout: float | None = None) -> object: ...
    def count_rejected(self) -> None: ...
    def stats(self) -> ServiceStats: ...
    def close(self) -> None: ...


class Backend:
    """Everything that is one loaded model. ``execute`` never waits: the service generates and the post sends."""

    def __init__(self, pb: Any, service: Server, tokenizer: Tokenizer, max_seq_len: int, model: str) -> None:
        self._pb = pb
        self._service = service
        self._tokenizer = tokenizer
        self._max_bytes = max_seq_len * LONGEST_TOKEN
        self._latencies = Latencies()
        self._recorder = Recorder(pb, model)
        self._recorded = float("-inf")
        self._post = Post(pb, self._tick)
        self._log = TritonLog(pb.Logger)
        self._log.open()

    @classmethod
    def open(cls, pb: Any, args: Mapping[str, str]) -> Backend:
        """From what Triton hands to ``initialize``.

        Raises:
            SpecbuildError: there is no such bundle, or this machine cannot run it.
        """
        from specbuild.runtime.generator import Generator
        from specbuild.runtime.service import Service

        settings = {name: value["string_value"] for name, value in json.loads(args["model_config"]).get("parameters", {}).items()}
        numbers = check_parameters(settings)
        queue_limit = numbers.pop("queue_limit", QUEUE_LIMIT)
        generator = Generator.open(bundle_path(settings, os.environ), interactive=True, **({"remember": REMEMBER} | numbers))
        for note in generator.notes:
            pb.Logger.log_warn(note)
        service = Service(generator, queue_limit=queue_limit)
        return cls(pb, service, generator.tokenizer, generator.entry.max_seq_len, args["model_name"])

    def execute(self, requests: list[Any]) -> None:
        """Queue each request; what is wrong with one is answered to that one."""
        for request in requests:
            exchange = Exchange(
                Call((), SamplingParams()),
                self._post,
                self._latencies,
                sender=request.get_response_sender(),
                request_id=request.request_id(),
            )
            try:
                self._submit(request, exchange)
            except SpecbuildError as error:
                exchange.failed(error)
            except Exception as error:  # whatever it is, the neighbours live on
                self._pb.Logger.log_error(f"a request failed: {error!r}")
                exchange.failed(ServerError(f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """End the service, tell whoever waits, and stop."""
        self._service.close()
        self._post.close()
        self._log.close()

    def _submit(self, request: Any, exchange: Exchange) -> None:
        try:
            exchange.call = self._read(request, exchange.request_id)
        except RequestError:
            self._service.count_rejected()
            raise
        self._post.open(exchange)
        self._service.submit(
            exchange.call.prompt, exchange.call.params, exchange, priority=exchange.call.priority, timeout=exchange.call.timeout
        )

    def _read(self, request: Any, request_id: str) -> Call:
        """What is asked for.

        Raises:
            RequestError: it is not possible.
            CancelledError: the end of the requests of its id, which is done.
        """
        tensors = {}
        for tensor in request.inputs():
            try:
                tensors[tensor.name()] = tensor.as_numpy()
            except Exception as error:  # the stub's own, for bytes that are no tensor of that type
                raise RequestError(f"{tensor.name()} cannot be read as {BY_NAME[tensor.name()].kind.type}: {error}") from error
        if "stop" in tensors and BY_NAME["stop"].kind.read("stop", tensors["stop"]):
            if not request_id:
                raise RequestError("stop is true, but the request has no id; give the id of the request that is to end")
            self._post.stop(request_id)
            raise CancelledError(f"request {request_id!r} was asked to end")
        return parse(
            tensors,
            lambda text: self._tokenizer.encode(text, special=False),
            wanted=set(request.requested_output_names()),
            max_bytes=self._max_bytes,
            strangers=json.loads(request.parameters() or "{}"),
        )

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._recorded >= METRICS_SECONDS:
            self._recorded = now
            self._recorder.record(self._service.stats(), self._latencies)


def bundle_path(settings: Mapping[str, str], environ: Mapping[str, str]) -> Path:
    """The folder that the model's parameter ``bundle`` names, else the environment.

    Raises:
        BundleError: neither does, or there is no such folder.
    """
    named = settings.get("bundle") or environ.get(BUNDLE)
    if not named:
        raise BundleError(f"which bundle is to be served is not known; set {BUNDLE}, or the parameter 'bundle' in config.pbtxt")
    path = Path(named)
    if not path.is_dir():
        raise BundleError(f"there is no bundle at {path}; build one with `specbuild engine build`")
    return path


def check_parameters(settings: Mapping[str, str]) -> dict[str, int]:
    """The numbers that config.pbtxt sets.

    Raises:
        UsageError: one is no whole number, or too small.
    """
    numbers = {}
    for name, low in NUMBERS.items():
        if (value := settings.get(name)) is not None:
            if not (value.isascii() and value.isdigit() and int(value) >= low):
                raise UsageError(f"config.pbtxt: the parameter {name} is {value!r}, but must be a whole number, at least {low}")
            numbers[name] = int(value)
    return numbers
