"""``specbuild config`` and ``specbuild doctor``."""

from __future__ import annotations

import json

import pytest

from specbuild import config
from specbuild.cli import doctor
from specbuild.cli.main import run
from specbuild.recipe import Recipe


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 0
    return capsys.readouterr().out


def test_show_says_which_source_won(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBUILD_TARGET__PRECISION", "int4")
    arguments = ["config", "show", "-c", "smollm2-135m", "--set", "speculation.method=off"]
    shown = json.loads(output(capsys, *arguments, "--json"))
    assert shown["target.precision"] == {"value": "int4", "origin": "SPECBUILD_TARGET__PRECISION"}
    assert shown["speculation.method"] == {"value": "off", "origin": "--set speculation.method"}
    assert shown["backend"] == {"value": "onnxruntime", "origin": "smollm2-135m.yaml"}
    assert shown["target.max_batch_size"] == {"value": 8, "origin": "default"}
    rows = [line.split() for line in output(capsys, *arguments).splitlines()]
    assert ["target.precision", "int4", "SPECBUILD_TARGET__PRECISION"] in rows
    assert ["target.config", "null", "default"] in rows


def test_the_schema_is_the_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(output(capsys, "config", "schema")) == Recipe.model_json_schema()


@pytest.mark.parametrize("arguments", [("config",), ("config", "list")])
def test_a_bare_noun_lists_the_shipped_recipes(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    names = [recipe["name"] for recipe in json.loads(output(capsys, *arguments, "--json"))]
    assert names == sorted(config.shipped())
    assert {"smollm2-135m", "smollm2-135m-rtx", "llama-3.1-8b-h100", "qwen3-8b-h100"} <= set(names)
    assert all(name in output(capsys, *arguments) for name in names)


def test_doctor_reports_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(output(capsys, "doctor", "--json"))
    abilities = {ability["name"]: ability for ability in report["abilities"]}
    assert abilities["build and run on ONNX Runtime (CPU)"]["works"]
    assert report["installed"]["onnxruntime"]
    assert "ONNX Runtime" in output(capsys, "doctor")


def test_doctor_names_what_is_missing_and_what_to_install() -> None:
    ability = doctor.Ability("run plans", ("bindings|whole", "torch", doctor.GPU), "pip install it")
    nothing: dict[str, str | None] = {"bindings": None, "whole": None, "torch": None}
    assert doctor.missing(ability, nothing, gpus=0) == ["bindings|whole", "torch", "GPU"]
    assert doctor.remedy(ability, ["torch", "GPU"]) == "pip install it; needs a GPU and its driver"
    assert doctor.missing(ability, nothing | {"whole": "1", "torch": "2"}, gpus=1) == []
    assert doctor.remedy(ability, []) == ""
    assert doctor.remedy(ability, ["GPU"]) == "needs a GPU and its driver"


def test_a_package_that_does_not_exist_is_not_installed() -> None:
    assert doctor.installed({"click|no-such-package"}) == {"click": doctor.installed({"click"})["click"], "no-such-package": None}


def test_doctor_says_what_serving_lacks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = {finding["name"]: finding for finding in json.loads(output(capsys, "doctor", "--json"))["serving"]}
    assert found["tritonserver"]["lack"] is None
    assert found["numpy below 2"]["seen"].startswith("1.")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (missing,) = json.loads(output(capsys, "doctor", "--json"))["serving"]
    assert (missing["name"], missing["seen"]) == ("tritonserver", "none")
    assert missing["lack"].endswith("pip install 'specbuild[triton]'")
    assert missing["lack"] in output(capsys, "doctor")
