"""What the tests of the commands share."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from specbuild.cli.main import run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_tiny(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> Command:
    """``specbuild run --bundle <tiny>`` with arguments: exit code, stdout, stderr."""

    def call(*arguments: str, stdin: bytes = b"", bundle: tuple[str, ...] = ("--bundle", str(tiny_bundle))) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = run(["run", *bundle, *arguments])
        return code, *capsys.readouterr()

    return call
