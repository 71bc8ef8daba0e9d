"""A real Triton server over the tiny bundle, started once for all tests that ask it something.

This folder is not called triton as the one that it is for: it is found from sys.path, and torch would take it for the compiler
of that name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from specbuild.bundle import Bundle
from specbuild.triton.installation import Installation, find
from specbuild.triton.openai.app import Endpoints
from specbuild.triton.openai.door import Door
from specbuild.triton.render import ModelSettings, render
from specbuild.triton.server import TritonServer, free_ports


@pytest.fixture(scope="session")
def installation() -> Installation:
    """The server of this machine: one on PATH, else the one that the extra [test] brings."""
    return find()


@pytest.fixture(scope="session")
def server(installation: Installation, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Ready, on free ports of the loopback interface."""
    repository = tmp_path_factory.mktemp("triton") / "repository"
    render([ModelSettings(bundle=tiny_bundle, parameters={"threads": "1", "queue_limit": "8"})], repository)
    with TritonServer(installation, repository, free_ports()) as server:
        server.wait_ready(120)
        yield server
        assert server.trouble is None, f"it did not outlive the tests:\n{server.log}"


@pytest.fixture
def url(server: TritonServer) -> str:
    """Of its gRPC."""
    return f"{server.ports.host}:{server.ports.grpc}"


@pytest.fixture(scope="session")
def door(server: TritonServer, tiny_bundle: Path) -> Iterator[Door]:
    """OpenAI's API in front of the server, on a free port."""
    app = Endpoints(Bundle.open(tiny_bundle), f"{server.ports.host}:{server.ports.grpc}").app()
    with Door(app, "127.0.0.1", 0) as door:
        yield door
    assert not any(thread.name == "specbuild-openai" for thread in threading.enumerate())


@pytest.fixture(scope="session")
def address(door: Door) -> str:
    """Of the door."""
    return f"http://127.0.0.1:{door.port}"


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[OpenAI]:
    """OpenAI's own, which does not try again."""
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
