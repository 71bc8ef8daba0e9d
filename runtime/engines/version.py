"""Whether the library that is installed runs what another version of it compiled."""

from __future__ import annotations

from specbuild.bundle import REBUILD, EngineEntry
from specbuild.errors import EnvironmentLacksError


def check_version(entry: EngineEntry, installed: str) -> None:
    """Compare the version of the library that compiled the engine with the one that would run it: plans of TensorRT hold for exactly
    one version, graphs of ONNX Runtime for one minor version (another may fuse and round differently).

    Raises:
        EnvironmentLacksError: they differ.
    """
    parts = 2 if entry.backend == "onnxruntime" else None
    if entry.version.split(".")[:parts] != installed.split(".")[:parts]:
        raise EnvironmentLacksError(
            f"the {entry.role} engine was built for {entry.flavour} {entry.version}, installed is {installed}; "
            f"install that version, or {REBUILD}"
        )
