"""The house rules that a reader cannot check at a glance: who imports whom, how long a file is, what start-up loads."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GROUND_FLOOR = {"specbuild", "specbuild.errors", "specbuild.recipe", "specbuild.bundle"}
WINGS = ("builders", "runtime")
LONGEST = 300
HEAVY = {"onnxruntime", "onnx", "onnx_ir", "torch", "transformers", "tensorrt", "tensorrt_rtx", "numpy", "pydantic", "rich", "yaml"}

LOADED = "import sys; {}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"

# A module whose optional library is not installed is passed over.
IMPORT_ALL = """
import contextlib, importlib
def import_all(names):
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
import_all"""


def sources(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def module_of(file: Path) -> str:
    """``builders/plan.py`` → ``specbuild.builders.plan``."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join((() if parts[0] == "specbuild" else ("specbuild",)) + parts).removesuffix(".__init__")


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it, relative names resolved."""
    package = module_of(file) if file.name == "__init__.py" else module_of(file).rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, [base, node.module]))
            # `from package import name` may import a module of that name: an imported module is what matters.
            named = [f"{origin}.{alias.name}" for alias in node.names]
            yield from (name if (ROOT / place(name)).with_suffix(".py").exists() else origin for name in named)


def place(module: str) -> str:
    """``specbuild.builders.plan`` → ``builders/plan``, its path below the root."""
    parts = module.split(".")
    return "/".join(parts[1:] if len(parts) > 1 and parts[1] in WINGS else parts)


def ours(file: Path) -> set[str]:
    return {name for name in imports(file) if name.split(".")[0] == "specbuild"}


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_imports_itself_and_the_ground_floor(wing: str) -> None:
    strangers = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sources(wing)
        for name in ours(file)
        if name not in GROUND_FLOOR and not name.startswith(f"specbuild.{wing}")
    }
    assert not strangers


def test_the_ground_floor_imports_nothing_above_it() -> None:
    for name in sorted(GROUND_FLOOR - {"specbuild"}):
        file = ROOT / place(name)
        assert ours(file.with_suffix(".py")) <= GROUND_FLOOR, name


def test_wings_are_imported_as_parts_of_specbuild() -> None:
    bare = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sources("specbuild", "builders", "runtime", "tests")
        for name in imports(file)
        if name.split(".")[0] in (*WINGS, "configs")
    }
    assert not bare


def test_the_import_graph_is_read_rightly() -> None:
    found = ours(ROOT / "builders" / "preparation.py")
    assert {"specbuild.builders.compilers.base", "specbuild.builders.plan", "specbuild.recipe", "specbuild"} <= found
    assert len(sources("builders", "runtime", "specbuild")) > 40, "links into the wings were not to be followed, nor files missed"


def test_no_wing_is_a_package_of_its_own() -> None:
    everything = [module_of(file) for file in sources("specbuild", *WINGS) if file.name != "__main__.py"]
    loaded = set(python(LOADED.format(f"{IMPORT_ALL}({everything})")).split())
    assert {"specbuild", "onnx_ir", "onnxruntime"} <= loaded
    assert not loaded & {"builders", "runtime", "configs"}


@pytest.mark.parametrize("arguments", ["--help", "--version"])
def test_help_loads_nothing_heavy(arguments: str) -> None:
    loaded = set(python(LOADED.format(f"from specbuild.cli.main import run; assert run(['{arguments}']) == 0")).split())
    assert "click" in loaded
    assert not loaded & HEAVY


def test_help_is_there_at_once() -> None:
    """The best of three: the rest of the machine may be at work."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        python("from specbuild.cli.main import run; run(['--help'])")
        times.append(time.perf_counter() - started)
    assert min(times) < 0.4


def test_files_are_short() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in sources("specbuild", *WINGS, "tests")
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def python(code: str) -> str:
    """What ``code`` prints, run by a Python of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
