"""A TensorRT plan, loaded: is this the library, the version and the GPU that it was compiled for?"""

from __future__ import annotations

import importlib
import mmap
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from specbuild.bundle import EngineEntry
from specbuild.errors import BundleError, EnvironmentLacksError, UnsupportedError

REBUILD = "`specbuild engine build --force -c RECIPE`"


@dataclass(frozen=True)
class Limits:
    """The largest batch, new tokens and wanted rows that one optimisation profile takes."""

    profile: int
    batch: int
    step: int
    rows: int

    def fits(self, batch: int, step: int, rows: int) -> bool:
        """Whether a pass of this shape may run under the profile."""
        return batch <= self.batch and step <= self.step and rows <= self.rows


class Plan:
    """A deserialised engine and the library that it runs with."""

    def __init__(self, path: Path, entry: EngineEntry, device: str) -> None:
        """Load ``path`` on the CUDA device ``device``, such as ``cuda:0``.

        Raises:
            UnsupportedError: it gives out hidden states.
            EnvironmentLacksError: no GPU, no library, or another version or GPU than it was compiled for.
            BundleError: the plan is missing or corrupt, or copies its cache instead of updating it in place.
        """
        if entry.taps or entry.first_layer:
            raise UnsupportedError(
                f"the {entry.role} engine passes hidden states on, which the TensorRT runtime does not take yet; "
                "remove speculation.heads and speculation.early_exit from the recipe and build again"
            )
        capability = require_gpu(device)
        self.trt = require_library(entry.flavour)
        check_machine(entry, str(self.trt.__version__), capability)
        self.errors: deque[str] = deque(maxlen=5)
        self._runtime = self.trt.Runtime(_logger(self.trt, self.errors))  # must outlive the engine
        self.engine = self._deserialize(path)
        self.limits = tuple(
            sorted((self._limits(index) for index in range(self.engine.num_optimization_profiles)), key=lambda each: each.step)
        )
        self._check_aliases(path, entry)

    def _deserialize(self, path: Path) -> Any:
        try:
            with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                engine = self._runtime.deserialize_cuda_engine(content)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise BundleError(f"{path}: cannot be read ({error}); build it anew with {REBUILD}") from error
        if engine is None:
            raise BundleError(
                f"{path}: {self.trt.__name__} {self.trt.__version__} does not load it ({self.quote()}); build it anew with {REBUILD}"
            )
        return engine

    def _limits(self, profile: int) -> Limits:
        _, _, ids = self.engine.get_tensor_profile_shape("input_ids", profile)
        _, _, rows = self.engine.get_tensor_profile_shape("logit_rows", profile)
        return Limits(profile, batch=ids[0], step=ids[1], rows=rows[1])

    def _check_aliases(self, path: Path, entry: EngineEntry) -> None:
        for layer in range(entry.num_layers):
            for kind in ("key", "value"):
                alias = self.engine.get_aliased_input_tensor(f"{kind}.{layer}")
                if alias != f"past_{kind}.{layer}":
                    raise BundleError(
                        f"{path}: output '{kind}.{layer}' does not alias its past (but {alias!r}); build it anew with {REBUILD}"
                    )

    def quote(self) -> str:
        """TensorRT's last errors, for the end of our own sentence."""
        return " | ".join(self.errors) or "no error message"


def require_gpu(device: str) -> str:
    """The compute capability of a CUDA device, such as ``sm89``.

    Raises:
        EnvironmentLacksError: torch is missing, was built without CUDA, or sees no such GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise EnvironmentLacksError(
            "TensorRT engines run on torch CUDA memory and torch is not installed: pip install 'torch>=2.8'"
        ) from error
    if not torch.cuda.is_available():
        raise EnvironmentLacksError(
            f"TensorRT engines need an NVIDIA GPU and torch {torch.__version__} sees none; run on one, or build with backend onnxruntime"
        )
    index = torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        raise EnvironmentLacksError(f"device {device} was asked for and there are {torch.cuda.device_count()} GPUs, the first is cuda:0")
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm{major}{minor}"


def require_library(flavour: str) -> ModuleType:
    """The module ``flavour`` (``tensorrt_rtx`` or ``tensorrt``), or its bindings where the metapackage is absent.

    Raises:
        EnvironmentLacksError: it is not installed or does not load.
    """
    try:
        try:
            return importlib.import_module(flavour)
        except ModuleNotFoundError:
            return importlib.import_module(f"{flavour}_bindings")
    except (ImportError, OSError, RuntimeError) as error:
        wheels = "tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings" if flavour == "tensorrt_rtx" else "'tensorrt>=11'"
        raise EnvironmentLacksError(f"the bundle's engines need {flavour} ({error}): pip install {wheels}") from error


def check_machine(entry: EngineEntry, version: str, capability: str) -> None:
    """Compare what a plan was compiled with and for to what is here.

    Raises:
        EnvironmentLacksError: naming both sides and the command that mends it.
    """
    if entry.version != version:
        raise EnvironmentLacksError(
            f"{entry.file}: compiled with {entry.flavour} {entry.version}, installed is {version}; "
            f"install that version or build anew with {REBUILD}"
        )
    if capability not in entry.compute_capabilities:
        raise EnvironmentLacksError(
            f"{entry.file}: compiled for {', '.join(entry.compute_capabilities)}, this machine's GPU is {capability}; "
            f"`specbuild engine build --force -c RECIPE --set tensorrt.compute_capabilities=[{capability}]`"
        )


def _logger(trt: ModuleType, errors: deque[str]) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]  # the base is known only once the library is loaded
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                errors.append(" ".join(message.split()))

    return Logger()
