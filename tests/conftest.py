"""What tests of every folder use; being here also lets them import the helpers beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_checkpoint import save_tiny


@pytest.fixture
def tiny_checkpoint(tmp_path: Path) -> Path:
    """A tiny random Llama checkpoint, a test's own."""
    return save_tiny(tmp_path / "checkpoint")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store that the commands use."""
    folder = tmp_path / "home"
    monkeypatch.setenv("SPECBUILD_HOME", str(folder))
    return folder
