"""Two servers with the options of the image: requests are spread over them, and one can go while both have work."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from manifests import DEPLOY, ROOT

from specbuild.errors import SpecbuildError
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import AsyncClient, Client
from specbuild.triton.installation import find
from specbuild.triton.server import TritonServer, free_ports

pytestmark = pytest.mark.slow
(COMMAND,) = (json.loads(line) for line in re.findall(r"^CMD (\[.+\])$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
SHORT = SamplingParams(max_tokens=1)
LONG = SamplingParams(seed=1, max_tokens=900, ignore_eos=True, speculation="off", logprobs=20)
"""As long and as slow as the tiny model can be: about a second."""


class AsInTheImage(TritonServer):
    """A server of this machine with the options that the image's has."""

    def command(self, *folders: Path) -> list[str]:
        usual = super().command(*folders)
        said = {option.partition("=")[0]: option for option in COMMAND[1:] if not option.startswith("--model-repository=")}
        return [*(option for option in usual if option.partition("=")[0] not in said), *said.values()]


@pytest.fixture
def servers(tiny_bundle: Path, tmp_path: Path) -> Iterator[list[TritonServer]]:
    """Two, ready, over the repository as it is shipped."""
    repository = shutil.copytree(ROOT / "triton_repo", tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__"))
    with ExitStack() as stack:
        started = [stack.enter_context(AsInTheImage(find(), repository, free_ports(), bundle=tiny_bundle)) for _ in range(2)]
        for server in started:
            server.wait_ready(120)
        yield started


def address(server: TritonServer) -> str:
    return f"{server.ports.host}:{server.ports.grpc}"


def taken(server: TritonServer) -> int:
    """Requests that it has taken."""
    with urllib.request.urlopen(f"http://{server.ports.host}:{server.ports.metrics}/metrics", timeout=10) as answer:
        found = re.search(r"^specbuild_requests{.*} (\d+)", answer.read().decode(), re.MULTILINE)
    return int(found[1]) if found else 0


async def until_both_have_work(client: AsyncClient, servers: list[TritonServer]) -> None:
    """A connection takes its time; then requests go to both in turn."""
    for _ in range(100):
        await client.generate("abc", SHORT)
        if all([await asyncio.to_thread(taken, server) for server in servers]):
            return
    pytest.fail("all requests went to one server")


def test_requests_are_spread_and_one_server_can_go(servers: list[TritonServer]) -> None:
    going, staying = servers

    async def scenario() -> None:
        async with AsyncClient(f"ipv4:{address(going)},{address(staying)}") as client:
            await until_both_have_work(client, servers)
            streams = [client.stream("abc", LONG) for _ in range(4)]
            for stream in streams:
                await anext(stream)
            os.kill(going.pid, signal.SIGTERM)
            await asyncio.to_thread(refuses, going)
            for stream in streams:
                async for _ in stream:
                    pass
                assert len(stream.answer.tokens) == 900
            await asyncio.to_thread(ends, going)
            assert [len((await client.generate("abc", SHORT)).tokens) for _ in range(4)] == [1] * 4

    asyncio.run(scenario())
    assert staying.running


def refuses(server: TritonServer) -> None:
    """Once it has heard the signal it takes nothing new."""
    client = Client(address(server))
    with suppress(SpecbuildError):
        for _ in range(100):
            client.generate("abc", SHORT, timeout=60)
        pytest.fail("it takes requests still")


def ends(server: TritonServer) -> None:
    """By itself, as what ran is done."""
    deadline = time.monotonic() + 30
    while server.running:
        assert time.monotonic() < deadline
        time.sleep(0.1)
