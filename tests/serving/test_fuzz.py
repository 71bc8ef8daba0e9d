"""Whatever arrives, each request is answered at once, with an error of ours or of Triton's, or an answer; and the server lives on."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc

from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import Client
from specbuild.triton.fields import INPUTS
from specbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow
SIZES = {"BOOL": 1, "INT32": 4, "FP32": 4, "INT64": 8, "UINT64": 8}
SLOWEST = 1.0
"""Seconds until an answer."""
FEW = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

NAMES = st.sampled_from([field.name for field in INPUTS] + ["text_input", "input_ids", "unknown"])
STRINGS = st.sampled_from([b"", b"hi", b"{}", b"[1]", b"null", b'{"5": 1e999}', b'[{"role": "user", "content": "x"}]', b"off", b"\xff\xfe"])


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, str, list[int], bytes]:
    """Name, datatype, shape and bytes, now and then of another field or not fitting together."""
    name = draw(NAMES)
    right = next((field.kind.wire for field in INPUTS if field.name == name), "BYTES")
    datatype = draw(st.sampled_from([right] * 8 + ["BYTES", "FP32", "NONE"]))
    count = draw(st.sampled_from([1] * 8 + [0, 2, 3]))
    if datatype in SIZES:
        size = SIZES[datatype] * count
        raw = draw(st.sampled_from([bytes(size), b"\x01".ljust(size, b"\0")[:size]]) | st.binary(min_size=size, max_size=size))
    else:
        raw = b"".join(
            len(text).to_bytes(4, "little") + text for text in draw(st.lists(STRINGS | st.binary(), min_size=count, max_size=count))
        )
    shape = draw(st.sampled_from([[count]] * 8 + [[count, 1], [], [-1], [2**40]]))
    return name, datatype, shape, draw(st.sampled_from([raw] * 8 + [raw[:-1], raw + b"\1", b"\xff\xff\xff\x7f" + raw]))


@pytest.fixture
def stub(url: str) -> Any:
    with grpc.insecure_channel(url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


PARAMETERS = st.sampled_from([{}, {}, {"top_k": 3}])
IDS = st.sampled_from(["", "a\0b"])


@FEW
@given(given_tensors=st.lists(tensors(), max_size=5), parameters=PARAMETERS, request_id=IDS)
def test_grpc(stub: Any, given_tensors: list[Any], parameters: dict[str, int], request_id: str) -> None:
    request = service_pb2.ModelInferRequest(model_name="specbuild", id=request_id)
    for name, datatype, shape, raw in given_tensors:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    began = time.monotonic()
    responses = list(stub.ModelStreamInfer(iter([request]), timeout=20))
    assert responses
    assert responses[-1].error_message or responses[-1].infer_response.outputs
    assert time.monotonic() - began < SLOWEST


VALUES = st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats() | st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=3)
BODIES = st.dictionaries(NAMES, VALUES, max_size=5).map(json.dumps) | st.text(max_size=20)


@FEW
@given(body=BODIES)
def test_http(server: TritonServer, body: str) -> None:
    began = time.monotonic()
    status, answer = post(server, body.encode())
    assert status in (200, 400, 500, 503)
    assert status == 200 or "error" in json.loads(answer)
    assert time.monotonic() - began < SLOWEST


def post(server: TritonServer, body: bytes) -> tuple[int, bytes]:
    url = f"http://{server.ports.host}:{server.ports.http}/v2/models/specbuild/generate"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_the_server_lives_on(url: str) -> None:
    assert Client(url).generate("a", SamplingParams(temperature=0, max_tokens=3)).tokens
