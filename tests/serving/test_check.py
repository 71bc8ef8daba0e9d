"""What a server would refuse is said before it does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specbuild.triton.check import check
from specbuild.triton.render import ModelSettings, render


@pytest.fixture
def repository(tmp_path: Path, tiny_bundle: Path) -> Path:
    render([ModelSettings(bundle=tiny_bundle)], tmp_path / "repository")
    return tmp_path / "repository"


def edit(repository: Path, before: str, after: str) -> None:
    file = repository / "specbuild" / "config.pbtxt"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))


def test_a_rendered_repository_is_taken(repository: Path) -> None:
    assert check(repository, {}) == []


def test_the_environment_may_name_the_bundle(tmp_path: Path, tiny_bundle: Path) -> None:
    render([ModelSettings()], tmp_path / "repository")
    assert check(tmp_path / "repository", {"SPECBUILD_BUNDLE": str(tiny_bundle)}) == []
    assert "set SPECBUILD_BUNDLE" in check(tmp_path / "repository", {})[0]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("decoupled: true", "decoupled: false", "decoupled must be true"),
        ("sampling_param_top_k", "sampling_param_topk", "the input sampling_param_top_k is missing"),
        ("sampling_param_top_k", "sampling_param_topk", "the input sampling_param_topk is unknown. Did you mean 'sampling_param_top_k'?"),
        ("TYPE_FP32", "TYPE_FP16", "the input sampling_param_temperature differs: it must be name:"),
        ('backend: "python"', 'backend: "pyhton"', "its backend is 'pyhton'"),
        ('name: "specbuild"', 'name: "other"', "config.pbtxt calls it 'other'"),
        ('name: "specbuild"', "nmae: 1", "config.pbtxt: 2:1"),
        ("instance_group", "max_batch_size: 8 instance_group", "max_batch_size is 8, but must be 0"),
        ('key: "bundle"', 'key: "bundel"', "the parameter 'bundel' is unknown. Did you mean 'bundle'?"),
        ("KIND_CPU", "KIND_GPU", "on a GPU"),
    ],
)
def test_each_mistake_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, found: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    edit(repository, before, after)
    assert any(found in what for what in check(repository, {})), check(repository, {})


def test_folders_that_are_no_models(repository: Path) -> None:
    (repository / "__pycache__").mkdir()
    (repository / "notes.txt").touch()
    (repository / "specbuild" / "1" / "model.py").unlink()
    assert check(repository, {}) == [
        "__pycache__: has no config.pbtxt, and every folder in a repository is taken for a model; remove it or add the file",
        "specbuild: 1/ has no model.py",
    ]
    shutil.rmtree(repository / "specbuild" / "1")
    assert "has no version folder" in check(repository, {})[1]


def test_a_bundle_that_is_gone(repository: Path, tiny_bundle: Path) -> None:
    edit(repository, str(tiny_bundle), "/nowhere/at/all")
    assert check(repository, {}) == ["specbuild: there is no bundle at /nowhere/at/all; build one with `specbuild engine build`"]


def test_no_repository(tmp_path: Path) -> None:
    assert check(tmp_path, {}) == [f"{tmp_path} has no model; `specbuild triton render` makes one"]
    assert check(tmp_path / "no", {}) == [f"{tmp_path / 'no'} is no folder"]
