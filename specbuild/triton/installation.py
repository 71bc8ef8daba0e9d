"""The Triton server on this machine: where it is, and whether its Python backend can work, before it is started."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
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


def find() -> Installation:
    """The server on PATH, else the one inside nvidia-pytriton; checked.

    Raises:
        EnvironmentLacksError: there is none, or its Python backend would crash; names the remedy.
    """
    on_path = shutil.which("tritonserver")
    installation = _standalone(Path(on_path).resolve()) if on_path else _packaged()
    check(installation)
    return installation


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
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not os.access(installation.executable, os.X_OK):
        raise EnvironmentLacksError(f"{installation.executable} cannot be executed; {INSTALL}")
    if not (installation.backends / "python" / "libtriton_python.so").is_file():
        raise EnvironmentLacksError(f"{installation.backends} has no Python backend; {INSTALL}, or use an image of Triton that has it")
    if not installation.stub.is_file():
        have = ", ".join(sorted(path.name for path in installation.stub.parent.parent.glob("3.*"))) or "none"
        raise EnvironmentLacksError(
            f"there is no stub for Python {python} at {installation.stub} (there is: {have}); use one of these Pythons"
        )
    _check_numpy()
    missing = missing_libraries(installation)
    if missing:
        raise EnvironmentLacksError(
            f"{installation.stub.name} needs {', '.join(missing)}, which is in none of "
            f"{', '.join(map(str, installation.libraries))}; use a Python that was built with --enable-shared, "
            f"or put the library's folder on LD_LIBRARY_PATH"
        )


def _check_numpy() -> None:
    try:
        installed = version("numpy")
    except PackageNotFoundError:
        raise EnvironmentLacksError("numpy is not installed; pip install 'numpy<2'") from None
    if int(installed.partition(".")[0]) >= 2:
        raise EnvironmentLacksError(
            f"numpy is {installed}, but Triton's Python backend crashes with numpy 2 and later; pip install 'numpy<2'"
        )


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
