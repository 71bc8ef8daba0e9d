"""Where a measurement was made."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine(threads: int | None) -> dict[str, Any]:
    """What a reader of figures needs to know of this machine; ``threads`` as the engines were given, None: their default."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "specbuild": version("specbuild"),
        "onnxruntime": version("onnxruntime"),
    }


def _processor() -> str:
    """The processor's name: from the kernel where it tells, since Python knows only the architecture there."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = (value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == "model name")
    return next(names, platform.processor() or platform.machine())
