"""What the image is made of exists. None is built here: that needs Docker."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from manifests import DEPLOY, ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IGNORED = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()


def test_the_image_has_a_python_that_the_package_takes() -> None:
    (python,) = re.findall(r"Python (\d+\.\d+)", DOCKERFILE)
    assert python in SpecifierSet(PROJECT["requires-python"])


def test_its_triton_tells_when_a_model_has_died() -> None:
    (release,) = re.findall(r"^ARG TRITON=(\d\d\.\d\d)-py3$", DOCKERFILE, re.MULTILINE)
    assert release >= "26.04"


def test_every_extra_that_is_named_exists() -> None:
    text = DOCKERFILE + (DEPLOY / "README.md").read_text(encoding="utf-8")
    named = {extra for extras in re.findall(r"\.\[([\w,-]+)\]", text) for extra in extras.split(",")}
    assert {"rtx", "tensorrt"} <= named <= PROJECT["optional-dependencies"].keys()


def test_numpy_is_one_that_the_stub_takes() -> None:
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    (numpy,) = [pin.specifier for pin in pins if pin.name == "numpy"]
    assert not numpy.contains("2.0.0")
    assert "1.26.4" in numpy


def test_what_is_copied_is_all_that_the_package_needs() -> None:
    assert IGNORED[1] == "*"
    kept = {line[1:] for line in IGNORED if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    linked = {(ROOT / "specbuild" / link).resolve().relative_to(ROOT).name for link in (ROOT / "specbuild").iterdir() if link.is_symlink()}
    assert {"specbuild", "pyproject.toml", "constraints.txt", PROJECT["readme"]} | linked <= kept
