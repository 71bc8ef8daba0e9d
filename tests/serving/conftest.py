"""A real Triton server over the tiny bundle, started once for all tests that ask it something.

This folder is not called triton as the one that it is for: it is found from sys.path, and torch would take it for the compiler
of that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specbuild.triton.installation import Installation, find
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
