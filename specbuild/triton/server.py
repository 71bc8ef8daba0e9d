"""A ``tritonserver`` process: started on ports of its own, watched, and stopped without leaving anything behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from specbuild.errors import EnvironmentLacksError, ServerError

from .installation import STUB, Installation, environment, lay_out

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
    """One server process over a model repository. A context manager: leaving it stops the server."""

    def __init__(self, installation: Installation, repository: Path, ports: Ports = Ports(), *, bundle: Path | None = None) -> None:
        self._installation = installation
        self._repository = repository
        self.ports = ports
        self._bundle = bundle
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self._stubs: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """All that the server has said."""
        file = self._folder / "log"
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    @property
    def pid(self) -> int:
        """Of the server."""
        assert self._process is not None, "started"
        return self._process.pid

    def start(self) -> None:
        """Start the process; it is not ready yet."""
        assert self._process is None, "started once"
        _adopt_orphans()
        self._folder = Path(tempfile.mkdtemp(prefix="specbuild-triton-"))
        environ = environment(self._installation)
        if self._bundle is not None:
            environ["SPECBUILD_BUNDLE"] = str(self._bundle)
        with (self._folder / "log").open("wb") as log:
            # A session of its own: a Ctrl-C in the terminal reaches us alone, and we decide how it ends.
            self._process = subprocess.Popen(
                self.command(lay_out(self._installation, self._folder)),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def command(self, backends: Path) -> list[str]:
        """The command line."""
        ports = self.ports
        options = {
            "model-repository": self._repository,
            "backend-directory": backends,
            "backend-config": f"python,shm-region-prefix-name={self._regions}",
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

    @property
    def _regions(self) -> str:
        """What this server's shared memory is called, so that a killed one's can be removed."""
        return f"{self._folder.name}-"

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Return when every model is ready.

        Raises:
            ServerError: the process ended or was not ready in ``timeout`` seconds; shows the end of its log.
        """
        deadline = time.monotonic() + timeout
        while not self._answers("v2/health/ready"):
            if not self.running:
                raise ServerError(f"tritonserver ended before it was ready:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"tritonserver was not ready after {timeout:g} s:\n{self._tail()}")
            time.sleep(0.1)
        self._stubs = frozenset(self.stubs())

    @property
    def running(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def healthy(self) -> bool:
        """Whether the server and every model's process that it was ready with are there. Cheap: to be asked often."""
        return self.running and all(_alive(pid) for pid in self._stubs)

    def stubs(self) -> list[int]:
        """Process ids of the models' Python."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            fields = _stat(int(entry.name))
            # Of an executable that is another user's there is nothing to be read.
            with suppress(OSError):
                if fields is not None and int(fields[3]) == self.pid and (entry / "exe").resolve().name == STUB:
                    found.append(int(entry.name))
        return found

    def stop(self, *, at_once: bool = False) -> None:
        """End the server and every process that it started, within about ``KILL_SECONDS``; ``at_once``: kill, do not ask."""
        if self._process is None:
            return
        stubs = {*self._stubs, *self.stubs()}
        process, self._process = self._process, None
        if process.poll() is None and not at_once:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pid in stubs:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for region in Path("/dev/shm").glob(f"{self._regions}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

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
