"""The script for whoever has a GPU must not rot for want of one: it refuses without, and all else in it runs on the CPU."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def test_without_a_gpu_it_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert caught.value.code == 3
    assert capsys.readouterr().err.startswith("gpu_check: TensorRT engines need an NVIDIA GPU")


def test_it_runs_with_an_int8_cpu_bundle_in_the_plans_place(tiny_checkpoint: Path, home: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    found = json.loads(
        json.dumps(script["check"]([f"checkpoint={tiny_checkpoint}", "target.max_seq_len=256"], "int8", "onnxruntime", 8, "sm89"))
    )
    assert found["probe"]["parity"]["max_abs_logit"] > 0
    assert {method: row["identical"] for method, row in found["methods"].items()} == {"off": True, "ngram": True, "draft_model": True}
    lines = script["table"](found).splitlines()
    assert sum(line.endswith("  yes") for line in lines) == 3
    assert lines[-1] == ("passed" if found["passed"] else "FAILED")
    found["methods"]["ngram"]["identical"] = False
    assert any(line.startswith("ngram") and line.endswith("NO") for line in script["table"](found).splitlines())
