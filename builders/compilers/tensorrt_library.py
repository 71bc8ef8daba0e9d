"""The TensorRT library of a backend, and what the machine offers it: one Python API, two modules.

``tensorrt-rtx`` (module ``tensorrt_rtx``, or ``tensorrt_rtx_bindings`` where the metapackage is absent) compiles without
a GPU for consumer and workstation GPUs. ``tensorrt`` (mainline, Hopper and the data centre) needs the GPU it compiles for.
"""

from __future__ import annotations

import ctypes
import importlib
from collections import deque
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from specbuild.errors import EnvironmentLacksError

TensorRTBackend = Literal["tensorrt-rtx", "tensorrt"]

INSTALL: dict[TensorRTBackend, str] = {
    "tensorrt-rtx": "pip install 'tensorrt-rtx-cu13-libs>=1.7' 'tensorrt-rtx-cu13-bindings>=1.7'",
    "tensorrt": "pip install 'tensorrt>=11' (its libraries come from NVIDIA's own package index)",
}
_OLDEST_MAJOR: dict[TensorRTBackend, int] = {"tensorrt-rtx": 1, "tensorrt": 11}


@dataclass(frozen=True)
class TensorRTLibrary:
    """The imported module: ``trt`` is used as the vendor's documentation writes it."""

    trt: ModuleType
    flavour: str
    """``tensorrt_rtx`` or ``tensorrt``, whichever name the module was found under."""
    version: str


def load(backend: TensorRTBackend) -> TensorRTLibrary:
    """Import the library of ``backend``.

    Raises:
        EnvironmentLacksError: it is not installed, does not load or is too old.
    """
    flavour = backend.replace("-", "_")
    try:
        try:
            trt = importlib.import_module(flavour)
        except ModuleNotFoundError:
            trt = importlib.import_module(f"{flavour}_bindings")
    except (ImportError, OSError, RuntimeError) as error:
        raise EnvironmentLacksError(f"backend {backend!r} needs its library ({error}): {INSTALL[backend]}") from error
    version = str(trt.__version__)
    if int(version.split(".")[0]) < _OLDEST_MAJOR[backend]:
        raise EnvironmentLacksError(f"backend {backend!r}: {flavour} {version} is too old: {INSTALL[backend]}")
    return TensorRTLibrary(trt, flavour, version)


class Messages:
    """What TensorRT said while it worked: the last warnings and errors, and each input that it found no use for."""

    def __init__(self, kept: int = 20) -> None:
        self.last: deque[str] = deque(maxlen=kept)
        self.unused_inputs: list[str] = []

    def logger(self, trt: ModuleType) -> Any:
        """An ``ILogger`` of ``trt`` that writes here; keep it as long as what it was given to."""
        messages = self

        class Logger(trt.ILogger):  # type: ignore[misc, name-defined]  # the base is known only once the library is loaded
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                if severity <= trt.ILogger.WARNING:
                    messages.hear(message, error=severity <= trt.ILogger.ERROR)

        return Logger()

    def hear(self, message: str, *, error: bool) -> None:
        """Take one message."""
        if message.startswith("Unused Input"):
            self.unused_inputs.append(message.partition(":")[2].strip())
        if error:
            self.last.append(" ".join(message.split()))

    def quote(self) -> str:
        """The last errors on one line, for the end of our own sentence."""
        return " | ".join(self.last) or "no error message"


def present_capability() -> str | None:
    """Compute capability of the first GPU, such as ``sm90``; None where the CUDA driver finds none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    major, minor, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), 0)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # …_MINOR
    )
    return None if failed else f"sm{major.value}{minor.value}"
