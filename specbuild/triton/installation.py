"""The Triton server on this machine: where it is, and whether its Python backend can work, before it is started."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specbuild.errors import EnvironmentLacksError

STUB = "triton_python_backend_stub"
INSTALL = "pip install 'specbuild[triton]'"


@dataclass(frozen=True)
class Installation:
    """A server's files."""

    executable: Path
    backends: Path
    """Folder with ``python/libtriton_python.so``."""
    stub: Path
    """The program that runs a model's Python; made for one version of it."""
    libraries: tuple[Path, ...]
    """For LD_LIBRARY_PATH."""


@dataclass(frozen=True)
class Finding:
    """One thing that serving takes."""

    name: str
    seen: str
    """What there is of it."""
    lack: str | None = None
    """A sentence that ends with the remedy; None: all is well."""


def find() -> Installation:
    """The server on PATH, else the one inside nvidia-pytriton; checked.

    Raises:
        EnvironmentLacksError: there is none, or its Python backend would crash; names the remedy.
    """
    installation = locate()
    check(installation)
    return installation


def locate() -> Installation:
    """The same, unchecked.

    Raises:
        EnvironmentLacksError: there is none.
    """
    on_path = shutil.which("tritonserver")
    return _standalone(Path(on_path).resolve()) if on_path else _packaged()


def _standalone(executable: Path) -> Installation:
    """As in NVIDIA's container: /opt/tritonserver/{bin,backends}."""
    root = executable.parent.parent
    return Installation(executable, root / "backends", root / "backends" / "python" / STUB, (root / "lib", *_python_libraries()))


def _packaged() -> Installation:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise EnvironmentLacksError(f"there is no tritonserver on PATH and no nvidia-pytriton in this environment; {INSTALL}")
    package = Path(spec.origin).parent
    root = package / "tritonserver"
    stub = root / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}" / STUB
    return Installation(
        root / "bin" / "tritonserver", root / "backends", stub, (package.parent / "nvidia_pytriton.libs", *_python_libraries())
    )


def _python_libraries() -> tuple[Path, ...]:
    folder = sysconfig.get_config_var("LIBDIR")
    return (Path(folder),) if folder else ()


def check(installation: Installation) -> None:
    """Find out beforehand what would crash the stub without a word.

    Raises:
        EnvironmentLacksError: with the exact remedy.
    """
    for finding in examine(installation):
        if finding.lack is not None:
            raise EnvironmentLacksError(finding.lack)


def examine(installation: Installation) -> Iterator[Finding]:
    """Everything that serving takes, and what is wrong with it."""
    yield _server(installation)
    yield _backend(installation)
    stub = _stub(installation)
    yield stub
    yield _numpy()
    if stub.lack is None:
        yield _libraries(installation)


def _server(installation: Installation) -> Finding:
    executable = installation.executable
    lack = None if os.access(executable, os.X_OK) else f"{executable} cannot be executed; {INSTALL}"
    return Finding("tritonserver", f"{executable} ({_release(executable)})", lack)


def _release(executable: Path) -> str:
    """The program does not tell it; NVIDIA's images have a file that does."""
    file = executable.parent.parent / "TRITON_VERSION"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    return f"nvidia-pytriton {_version('nvidia-pytriton')}" if "pytriton" in executable.parts else "of an unknown version"


def _backend(installation: Installation) -> Finding:
    library = installation.backends / "python" / "libtriton_python.so"
    lack = f"{installation.backends} has no Python backend; {INSTALL}, or use an image of Triton that has it"
    return Finding("Python backend", str(library), None if library.is_file() else lack)


def _stub(installation: Installation) -> Finding:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    have = ", ".join(sorted(path.name for path in installation.stub.parent.parent.glob("3.*"))) or "none"
    lack = f"there is no stub for Python {python} at {installation.stub} (there is: {have}); use one of these Pythons"
    return Finding(f"stub for Python {python}", str(installation.stub), None if installation.stub.is_file() else lack)


def _numpy() -> Finding:
    installed = _version("numpy")
    if installed is None:
        return Finding("numpy below 2", "none", "numpy is not installed; pip install 'numpy<2'")
    lack = f"numpy is {installed}, but Triton's Python backend crashes with numpy 2 and later; pip install 'numpy<2'"
    return Finding("numpy below 2", installed, lack if int(installed.partition(".")[0]) >= 2 else None)


def _libraries(installation: Installation) -> Finding:
    missing = missing_libraries(installation)
    folders = ", ".join(map(str, installation.libraries))
    lack = (
        f"{installation.stub.name} needs {', '.join(missing)}, which is in none of {folders}; "
        "use a Python that was built with --enable-shared, or put the library's folder on LD_LIBRARY_PATH"
    )
    return Finding(
        "libpython and what else the stub loads", f"missing: {', '.join(missing)}" if missing else "found", lack if missing else None
    )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def missing_libraries(installation: Installation) -> list[str]:
    """Shared libraries that the stub would not find, by ``ldd``; none where there is no ``ldd``."""
    if shutil.which("ldd") is None:
        return []
    listed = subprocess.run(["ldd", installation.stub], env=environment(installation), capture_output=True, text=True, check=False)
    return [line.split()[0] for line in listed.stdout.splitlines() if "not found" in line]


def environment(installation: Installation) -> dict[str, str]:
    """Of the server's process: its libraries, and this Python, which the stub finds through PATH, with this specbuild."""
    environ = dict(os.environ)
    _prepend(environ, "LD_LIBRARY_PATH", *map(str, installation.libraries))
    _prepend(environ, "PATH", str(Path(sys.executable).parent))
    _prepend(environ, "PYTHONPATH", str(Path(__file__).parent.parent.parent))
    return environ


def _prepend(environ: dict[str, str], name: str, *entries: str) -> None:
    environ[name] = os.pathsep.join([*entries, *filter(None, [environ.get(name)])])


def lay_out(installation: Installation, folder: Path) -> Path:
    """A folder of backends in ``folder`` whose Python backend has its stub beside it; the installation itself is not touched."""
    python = folder / "backends" / "python"
    python.mkdir(parents=True)
    for file in (installation.backends / "python").iterdir():
        if file.is_file() and file.name != STUB:
            (python / file.name).symlink_to(file)
    shutil.copy(installation.stub, python / STUB)
    (python / STUB).chmod(0o755)
    return python.parent
