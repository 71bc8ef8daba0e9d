"""``specbuild triton serve`` as a process: ready, interrupted, killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from specbuild.cli.main import run
from specbuild.errors import SpecbuildError
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import Client
from specbuild.triton.installation import STUB
from specbuild.triton.scratch import PREFIX
from specbuild.triton.server import Ports, check_ports, free_ports

pytestmark = pytest.mark.slow
ENDLESS = SamplingParams(seed=1, max_tokens=900, ignore_eos=True, speculation="off", logprobs=20)


class Serving:
    """The command, running, and what it has said."""

    def __init__(self, process: subprocess.Popen[str], ports: Ports, door: int) -> None:
        self.process, self.ports, self.door = process, ports, door
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def url(self) -> str:
        return f"{self.ports.host}:{self.ports.grpc}"

    def openai(self, **fields: object) -> tuple[int, bytes]:
        """Status and the first line of the answer of OpenAI's door."""
        body = json.dumps({"model": "specbuild", "prompt": "a", "temperature": 0, "max_tokens": 3} | fields).encode()
        request = urllib.request.Request(f"http://{self.ports.host}:{self.door}/v1/completions", data=body)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.readline()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def wait_ready(self, times: int = 1) -> None:
        deadline = time.monotonic() + 60
        while sum(line.startswith("ready:") for line in self.said) < times:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def interrupt(self) -> float:
        """Ctrl-C; returns the seconds that it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(10) == 0
        self._reader.join()
        return time.monotonic() - began

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(10)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(line.rstrip() for line in self.process.stderr)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands of a test have their folders, and nobody else."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[Serving]:
    ports, door = free_ports(), free_ports().http
    command = [sys.executable, "-m", "specbuild", "triton", "serve", "-b", str(bundle), "--threads", "1", *options]
    command += [f"--grpc-port={ports.grpc}", f"--http-port={ports.http}", f"--metrics-port={ports.metrics}", f"--openai={door}"]
    running = Serving(subprocess.Popen(command, stderr=subprocess.PIPE, text=True), ports, door)
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


def processes(words: str) -> list[int]:
    """Whose command line has these words; no zombies."""
    return [int(file.parent.name) for file in Path("/proc").glob("[0-9]*/cmdline") if words in _text(file)]


def scratches(temporary: Path) -> list[Path]:
    """Folders of servers. Their names are in the command lines of the processes and in the names of the shared memory."""
    return list(temporary.glob(f"{PREFIX}*"))


def model(temporary: Path) -> int:
    """The process of the one model."""
    (folder,) = scratches(temporary)
    (pid,) = set(processes(f"{folder}/backends/python/{STUB}"))
    return pid


def left(folder: Path) -> list[object]:
    """Of a server: living processes and shared memory."""
    return [*processes(folder.name), *Path("/dev/shm").glob(f"{folder.name}*")]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


@pytest.mark.usefixtures("installation")
def test_ctrl_c_in_mid_stream_leaves_nothing(tiny_bundle: Path, temporary: Path) -> None:
    with serving(tiny_bundle) as running:
        stream = Client(running.url).stream("a", ENDLESS)
        next(stream)
        assert running.openai(stream=True, max_tokens=900, seed=1, specbuild={"ignore_eos": True})[0] == 200
        (folder,) = scratches(temporary)
        assert len(processes(f"--grpc-port={running.ports.grpc}")) == 2
        pids = processes(folder.name)
        assert len(pids) >= 3, "a leash, a server and a model"
        assert len(left(folder)) > len(pids), "the model's memory"
        assert running.interrupt() < 5
        with suppress(SpecbuildError):  # if it was not done by then, its client is told
            for _ in stream:
                pass
        assert running.said[-1] == "stopped"
    assert left(folder) == []
    assert scratches(temporary) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "no zombies either: in a container nobody else may ever wait for them"


@pytest.mark.usefixtures("installation")
def test_a_killed_model_is_started_again(tiny_bundle: Path, temporary: Path) -> None:
    with serving(tiny_bundle) as running:
        stream = Client(running.url).stream("a", ENDLESS)
        next(stream)
        (folder,) = scratches(temporary)
        os.kill(model(temporary), signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(SpecbuildError):
            for _ in stream:
                pass
        assert time.monotonic() - began < 2
        status, answer = running.openai()
        assert (status, json.loads(answer)["error"]["code"]) == (503, "unavailable")
        running.wait_ready(times=2)
        assert "a process of the server died; starting it again in 1 s" in running.said
        text = Client(running.url).generate("a", SamplingParams(temperature=0, max_tokens=3)).text
        deadline = time.monotonic() + 5
        while (asked := running.openai())[0] != 200:
            assert time.monotonic() < deadline, asked
        assert json.loads(asked[1])["choices"][0]["text"] == text
        assert left(folder) == []
        running.interrupt()
    assert scratches(temporary) == []


@pytest.mark.usefixtures("installation")
def test_a_model_that_hangs_is_started_again(tiny_bundle: Path, temporary: Path) -> None:
    with serving(tiny_bundle, "--hang-seconds", "5") as running:
        (folder,) = scratches(temporary)
        os.kill(model(temporary), signal.SIGSTOP)
        with pytest.raises(SpecbuildError):
            Client(running.url).generate("a", SamplingParams(max_tokens=3))
        running.wait_ready(times=2)
        assert "the server has stood still for 5 s; starting it again in 1 s" in running.said
        assert Client(running.url).generate("a", SamplingParams(temperature=0, max_tokens=3)).text
        assert left(folder) == []
        running.interrupt()


@pytest.mark.usefixtures("installation")
def test_a_killed_command_takes_its_server_along(tiny_bundle: Path, temporary: Path) -> None:
    with serving(tiny_bundle) as running:
        (folder,) = scratches(temporary)
        running.process.kill()
        deadline = time.monotonic() + 10
        while left(folder):
            assert time.monotonic() < deadline, "they live on"
            time.sleep(0.05)
        check_ports(running.ports)
    os.utime(folder, (0, 0))
    with serving(tiny_bundle) as running:
        assert not folder.exists()
        running.interrupt()
    assert scratches(temporary) == []


def test_a_taken_port_is_refused_before_anything_starts(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for option in ("--grpc-port", "--openai"):
            assert run(["triton", "serve", "-b", str(tiny_bundle), option, str(port)]) == 3
            assert f"127.0.0.1:{port} cannot be listened on (Address already in use); give another {option}" in capsys.readouterr().err


def test_a_door_without_its_libraries_is_refused(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specbuild.triton.openai.LIBRARIES", ("starlette", "no_such_library"))
    assert run(["triton", "serve", "-b", str(tiny_bundle), "--openai", "8100"]) == 3
    assert "the OpenAI door needs no_such_library, not installed here; pip install 'specbuild[openai]'" in capsys.readouterr().err


def test_render_and_check_commands(tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["triton", "render", "-b", str(tiny_bundle), "-b", str(tiny_bundle), "--name", "one", "--name", "two", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out / "one"), str(out / "two")]
    assert run(["triton", "check", str(out)]) == 0
    (out / "one" / "1" / "model.py").unlink()
    assert run(["triton", "check", str(out)]) == 2
    assert "one: 1/ has no model.py" in capsys.readouterr().out
    assert run(["triton", "render", "-b", str(tiny_bundle), "--name", "a", "--name", "b", str(tmp_path / "no")]) == 2
