"""What would crash Triton's Python backend without a word is found beforehand, with the remedy."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specbuild.errors import EnvironmentLacksError
from specbuild.triton import installation as module
from specbuild.triton.installation import STUB, Installation, check, environment, examine, lay_out
from specbuild.triton.server import Ports, check_ports, free_ports


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """Files as a server has them, and a numpy that works."""
    monkeypatch.setattr(module, "version", lambda name: "1.26.4")
    backends = tmp_path / "backends"
    (backends / "python").mkdir(parents=True)
    (backends / "python" / "libtriton_python.so").touch()
    (tmp_path / "bin").mkdir()
    executable = tmp_path / "bin" / "tritonserver"
    executable.touch(mode=0o755)
    stub = tmp_path / "stubs" / "3.11" / STUB
    stub.parent.mkdir(parents=True)
    stub.touch()
    return Installation(executable, backends, stub, (tmp_path / "lib",))


def test_a_whole_installation_passes(whole: Installation) -> None:
    check(whole)


def test_each_lack_is_named_with_its_remedy(whole: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version", lambda name: "2.4.6")
    with pytest.raises(EnvironmentLacksError, match=r"numpy is 2\.4\.6, .*; pip install 'numpy<2'"):
        check(whole)
    whole.stub.unlink()
    with pytest.raises(EnvironmentLacksError, match=rf"no stub for Python {sys.version_info.major}\.{sys.version_info.minor}"):
        check(whole)
    (whole.backends / "python" / "libtriton_python.so").unlink()
    with pytest.raises(EnvironmentLacksError, match=r"has no Python backend; pip install 'specbuild\[triton\]'"):
        check(whole)
    whole.executable.chmod(0o644)
    with pytest.raises(EnvironmentLacksError, match="cannot be executed"):
        check(whole)


def test_all_of_it_is_listed(whole: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version", lambda name: "2.4.6")
    (whole.executable.parent.parent / "TRITON_VERSION").write_text("2.51.0\n")
    server, backend, stub, numpy, libraries = examine(whole)
    assert server.seen == f"{whole.executable} (2.51.0)"
    assert (numpy.seen, numpy.lack is None) == ("2.4.6", False)
    assert [finding.lack for finding in (server, backend, stub, libraries)] == [None] * 4
    whole.stub.unlink()
    assert len(list(examine(whole))) == 4, "what a missing stub would load is not asked"


def test_the_release_of_other_servers(whole: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version", lambda name: {"nvidia-pytriton": "0.7.0"}.get(name, "1.26.4"))
    assert next(examine(whole)).seen.endswith("(of an unknown version)")
    packaged = replace(whole, executable=tmp_path / "pytriton" / "tritonserver" / "bin" / "tritonserver")
    assert next(examine(packaged)).seen.endswith("(nvidia-pytriton 0.7.0)")


def test_a_missing_shared_library_is_named(whole: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing_libraries", lambda installation: ["libpython3.11.so.1.0"])
    with pytest.raises(EnvironmentLacksError, match=r"needs libpython3\.11\.so\.1\.0, .*--enable-shared"):
        check(whole)


def test_neither_server_nor_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentLacksError, match=r"no tritonserver on PATH and no nvidia-pytriton .*pip install 'specbuild\[triton\]'"):
        module.find()


def test_a_server_on_path_is_taken_first(whole: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole.backends / "python" / STUB).touch()
    monkeypatch.setattr(module.shutil, "which", lambda name: str(whole.executable) if name == "tritonserver" else None)
    found = module.find()
    assert (found.executable, found.stub) == (whole.executable, whole.backends / "python" / STUB)


def test_the_stub_is_put_beside_its_library_and_nothing_else_is_touched(whole: Installation, tmp_path: Path) -> None:
    backends = lay_out(whole, tmp_path / "own")
    assert sorted(file.name for file in (backends / "python").iterdir()) == ["libtriton_python.so", STUB]
    assert [file.name for file in (whole.backends / "python").iterdir()] == ["libtriton_python.so"]


def test_the_stub_finds_this_python_and_this_specbuild(whole: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    environ = environment(whole)
    assert environ["LD_LIBRARY_PATH"] == f"{whole.libraries[0]}:/before"
    assert environ["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert (Path(environ["PYTHONPATH"].split(":")[0]) / "specbuild").is_dir()


def test_a_port_in_use_is_named_with_its_option() -> None:
    ports = free_ports()
    check_ports(ports)
    with socket.socket() as taken:
        taken.bind((ports.host, ports.http))
        taken.listen()
        with pytest.raises(EnvironmentLacksError, match=rf"127\.0\.0\.1:{ports.http} cannot be listened on .*give another --http-port"):
            check_ports(ports)


def test_free_ports_differ() -> None:
    ports = free_ports()
    assert len({ports.grpc, ports.http, ports.metrics}) == 3
    assert Ports().host == "127.0.0.1"
