"""A ``tritonserver`` process: started on ports of its own, watched, and stopped without leaving anything behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from specbuild.errors import EnvironmentLacksError, ServerError

from .heartbeat import Heartbeat
from .installation import STUB, Installation, environment, lay_out
from .render import ModelSettings, render
from .scratch import Scratch, sweep

EXIT_SECONDS = 1
"""What Triton may wait for streams that run."""
KILL_SECONDS = 3.0
"""After which it is killed."""
READY_SECONDS = 300.0
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2)"""
TAIL = 15
"""Lines of the log in an error."""


@dataclass(frozen=True)
class Ports:
    """Where the server listens."""

    grpc: int = 8001
    http: int = 8000
    metrics: int = 8002
    host: str = "127.0.0.1"


class TritonServer:
    """One server process over a model repository. A context manager: leaving it stops the server.

    Its processes are a group that ends with this process, even if this one is killed.
    """

    def __init__(
        self,
        installation: Installation,
        repository: Path | Sequence[ModelSettings],
        ports: Ports = Ports(),
        *,
        bundle: Path | None = None,
        hang_seconds: float | None = None,
    ) -> None:
        """``repository``: its folder, or the models that one is to be made of. ``bundle``: for models that name none.
        ``hang_seconds``: of standing still, after which it is in ``trouble``; None: it is not watched for that."""
        self._installation = installation
        self._repository = repository
        self.ports = ports
        self._bundle = bundle
        self._hang_seconds = hang_seconds
        self._scratch: Scratch | None = None
        self._leash: subprocess.Popen[bytes] | None = None
        """Leads the process group, whose id thereby is nobody else's until all of it has ended."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stubs: frozenset[int] = frozenset()
        self._heartbeat: Heartbeat | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """All that the server has said."""
        return self._scratch.log if self._scratch is not None else ""

    @property
    def pid(self) -> int:
        """Of the server."""
        assert self._process is not None, "started"
        return self._process.pid

    def start(self) -> None:
        """Start the process; it is not ready yet."""
        assert self._scratch is None, "not running"
        _adopt_orphans()
        sweep()
        scratch = self._scratch = Scratch()
        repository = self._repository
        if not isinstance(repository, Path):
            models, repository = repository, scratch.folder / "repository"
            render(models, repository)
        environ = environment(self._installation)
        if self._bundle is not None:
            environ["SPECBUILD_BUNDLE"] = str(self._bundle)
        command = self.command(repository, lay_out(self._installation, scratch.folder))
        with scratch.open_log() as log:
            # A group of their own: a Ctrl-C in the terminal reaches us alone, and we decide how it ends.
            self._leash = subprocess.Popen(scratch.leash, stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0)
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=self._leash.pid
            )

    def command(self, repository: Path, backends: Path) -> list[str]:
        """The command line."""
        assert self._scratch is not None, "started"
        ports = self.ports
        options = {
            "model-repository": repository,
            "backend-directory": backends,
            "backend-config": f"python,shm-region-prefix-name={self._scratch.regions}",
            "model-control-mode": "none",
            "disable-auto-complete-config": None,
            "exit-timeout-secs": EXIT_SECONDS,
            "grpc-address": ports.host,
            "grpc-port": ports.grpc,
            "http-address": ports.host,
            "http-port": ports.http,
            "metrics-address": ports.host,
            "metrics-port": ports.metrics,
            "allow-gpu-metrics": "false" if shutil.which("nvidia-smi") is None else "true",
        }
        return [str(self._installation.executable), *(f"--{name}" + ("" if v is None else f"={v}") for name, v in options.items())]

    def wait_ready(self, timeout: float = READY_SECONDS, *, end: threading.Event | None = None) -> None:
        """Return when every model is ready, or ``end`` is set.

        Raises:
            ServerError: the process ended or was not ready in ``timeout`` seconds; shows the end of its log.
        """
        deadline = time.monotonic() + timeout
        end = end or threading.Event()
        while not self._answers("v2/health/ready"):
            if not self.running:
                raise ServerError(f"tritonserver ended before it was ready:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"tritonserver was not ready after {timeout:g} s:\n{self._tail()}")
            if end.wait(0.1):
                return
        self._stubs = frozenset(self.stubs())
        if self._hang_seconds is not None:
            self._heartbeat = Heartbeat(f"http://{self.ports.host}:{self.ports.metrics}/metrics", self._hang_seconds)

    @property
    def running(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def trouble(self) -> str | None:
        """Why a server that was ready is of no use any more; None: it is. Cheap: to be asked often."""
        if not (self.running and all(_alive(pid) for pid in self._stubs)):
            return "a process of the server died"
        if self._heartbeat is not None and self._heartbeat.stopped:
            return f"the server has stood still for {self._hang_seconds:g} s"
        return None

    def stubs(self) -> list[int]:
        """Process ids of the models' Python."""
        found: list[int] = []
        if self._leash is None:
            return found
        for entry in Path("/proc").glob("[0-9]*"):
            fields = _stat(int(entry.name))
            # Of an executable that is another user's there is nothing to be read.
            with suppress(OSError):
                if fields is not None and int(fields[2]) == self._leash.pid and (entry / "exe").resolve().name == STUB:
                    found.append(int(entry.name))
        return found

    def stop(self, *, at_once: bool = False) -> None:
        """End the server and every process that it started, within about ``KILL_SECONDS``; ``at_once``: kill, do not ask."""
        if self._scratch is None:
            return
        stubs = {*self._stubs, *self.stubs()}
        scratch, self._scratch = self._scratch, None
        leash, self._leash = self._leash, None
        process, self._process = self._process, None
        if process is not None and process.poll() is None and not at_once:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
        if leash is not None:
            os.killpg(leash.pid, signal.SIGKILL)
            leash.communicate()
        if process is not None:
            process.wait()
        for pid in stubs:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self._heartbeat is not None:
            self._heartbeat.close()
        scratch.remove()

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.ports.host}:{self.ports.http}/{path}", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _tail(self) -> str:
        return "\n".join(self.log.splitlines()[-TAIL:])


def _stat(pid: int) -> list[str] | None:
    """State, parent, group, session, … of a process, as proc(5) numbers them from 3; None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _alive(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] not in "ZX"


def _adopt_orphans() -> None:
    """Make this process the parent of whatever a killed server leaves: in a container nobody else may wait for it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def check_ports(ports: Ports) -> None:
    """Find out before the server does.

    Raises:
        EnvironmentLacksError: something listens there already, or it is not for us.
    """
    for name in ("grpc", "http", "metrics"):
        bound(ports.host, getattr(ports, name), f"--{name}-port").close()


def bound(host: str, port: int, option: str) -> socket.socket:
    """A socket at a port that the command line's ``option`` named.

    Raises:
        EnvironmentLacksError: something listens there already, or it is not for us.
    """
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise EnvironmentLacksError(f"{host}:{port} cannot be listened on ({error.strerror}); give another {option}") from None
    return made


def free_ports(host: str = Ports.host) -> Ports:
    """Three ports that nothing listens on now."""
    with socket.socket() as first, socket.socket() as second, socket.socket() as third:
        sockets = (first, second, third)
        for one in sockets:
            one.bind((host, 0))
        grpc, http, metrics = (one.getsockname()[1] for one in sockets)
        return Ports(grpc, http, metrics, host)
