"""Every name that our code uses of TensorRT's Python API, found in its source: the API drifts, and no GPU is here to notice."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from types import ModuleType

# How the code calls a TensorRT object, always → its class.
OBJECTS = {
    "builder": "Builder",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "problem": "ParserError",
    "layer": "ILayer",
    "tensor": "ITensor",
    "made": "IOptimizationProfile",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
}


def used_names(module: ModuleType, objects: dict[str, str]) -> set[str]:
    """Dotted names, such as ``ICudaEngine.num_io_tensors`` and ``DataType.FLOAT``; ``objects`` adds to ``OBJECTS``."""
    tree = ast.parse(inspect.getsource(module))
    return set(_names(tree, OBJECTS | objects))


def missing_names(trt: ModuleType, names: set[str]) -> set[str]:
    """Those of ``names`` that ``trt`` does not have."""
    return {name for name in names if not _has(trt, name)}


def _names(tree: ast.AST, objects: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        parts = [part.partition("(")[0] for part in ast.unparse(node).split(".")]
        # self.engine and self._plan.engine are an engine as much as engine is; trt.X.Y is the module's own X.Y.
        for index, part in enumerate(parts[:-1]):
            known = part.lstrip("_")
            if known == "trt":
                yield ".".join(parts[index + 1 :])
            elif known in objects:
                yield f"{objects[known]}.{parts[index + 1]}"


def _has(trt: ModuleType, name: str) -> bool:
    try:
        functools.reduce(getattr, name.split("."), trt)
    except AttributeError:
        return False
    return True
