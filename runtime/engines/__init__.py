"""Engines: one file a backend, imported only when a bundle asks for it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

from specbuild.bundle import EngineEntry

from ..engine import Engine
from .split import SplitEngine, part_entries

# Backend → module beside this one, class in it.
BACKENDS = {
    "onnxruntime": ("onnxruntime", "OnnxRuntimeEngine"),
    "tensorrt-rtx": ("tensorrt", "TensorRTEngine"),
    "tensorrt": ("tensorrt", "TensorRTEngine"),
}


def load(folder: Path, entry: EngineEntry, *, threads: int | None = None) -> Engine:
    """The engine that ``entry`` describes, from the bundle at ``folder``.

    Raises:
        EnvironmentLacksError: this machine lacks the library, its version or the GPU that the engine needs.
        BundleError: the file is no engine.
    """
    if entry.lower is not None:
        lower, upper = part_entries(entry)
        return SplitEngine(entry, load(folder, lower, threads=threads), load(folder, upper, threads=threads))
    module, name = BACKENDS[entry.backend]
    engine = getattr(importlib.import_module(f".{module}", __package__), name)
    return cast(Engine, engine(folder / entry.file, entry, threads=threads))
