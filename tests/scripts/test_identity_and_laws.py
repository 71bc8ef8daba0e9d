"""The scripts behind docs/identity.md and docs/laws.md: which cells a share has, resuming, counting, the pages."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import save_tiny

from specbuild.bench.every_method import METHODS
from specbuild.runtime.acceptance import RULES

SCRIPTS = Path(__file__).parents[2] / "scripts"
IDENTITY = runpy.run_path(str(SCRIPTS / "identity.py"))
LAWS = runpy.run_path(str(SCRIPTS / "laws.py"))
FACTORS, Answer = IDENTITY["FACTORS"], IDENTITY["Answer"]


def test_a_share_has_every_pair_of_levels() -> None:
    everything = IDENTITY["cells"]()
    assert len(set(everything)) == 9504
    for share, seed in ((0.0, 0), (0.1, 1), (0.1, 2)):
        chosen = IDENTITY["cells"](share, seed)
        assert len(set(chosen)) == len(chosen) < 80 if share == 0 else len(set(chosen)) == 950
        for (i, one), (j, other) in itertools.combinations(enumerate(FACTORS.values()), 2):
            assert {(cell[i], cell[j]) for cell in chosen} == set(itertools.product(one, other))
    assert IDENTITY["cells"](0.1, 2) == chosen != IDENTITY["cells"](0.1, 1)
    assert {method for method in METHODS if METHODS[method].get("method", method) == "cascade"} == {"cascade of 2", "cascade of 3"}


def test_every_difference_counts() -> None:
    plain = [Answer((1, 2, 3), ("a", "b", "c")), Answer((4,), ("d",))]
    seen = [Answer((1, 9, 3), ("a", "b", "x")), Answer((4, 5), ("d", "e"))]
    assert IDENTITY["compare"](plain, plain) == {"tokens": 4, "differing_tokens": 0, "differing_rows": 0}
    assert IDENTITY["compare"](plain, seen) == {"tokens": 4, "differing_tokens": 2, "differing_rows": 2}


def call(monkeypatch: pytest.MonkeyPatch, script: dict[str, Any], *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    code: int = script["main"]()
    return code


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_identity_runs_resumes_and_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every method, and each of them drafts what is right now and then."""
    checkpoint = save_tiny(tmp_path / "checkpoint", max_position_embeddings=2048)
    (checkpoint / "chat_template.jinja").write_text("{{ messages[0].content }}")
    prompts, results, page = tmp_path / "prompts.jsonl", tmp_path / "results.jsonl", tmp_path / "page.md"
    prompts.write_text("".join(json.dumps({"task": task, "turns": [f"about {task}", "more"]}) + "\n" for task in FACTORS["task"] * 2))
    arguments = ["--checkpoint", str(checkpoint), "--prompts", str(prompts), "--results", str(results), "--share", "0", "--per-task", "1"]
    arguments += ["--max-tokens", "8", "--threads", "1"]
    assert call(monkeypatch, IDENTITY, *arguments) == 0
    lines = results.read_text().splitlines(keepends=True)
    ran = sum("cell" in json.loads(line) for line in lines)
    assert ran == len(IDENTITY["cells"](0))
    assert capsys.readouterr().err.count(": 0 of 8 differ") == ran
    found = [json.loads(line) for line in lines if '"cell"' in line]
    accepted = {method: sum(line["accepted"] for line in found if line["cell"]["method"] == method) for method in METHODS}
    assert min(accepted.values()) > 0, accepted
    # The last two cells are missing, one of them cut off in the middle: they alone run again.
    results.write_text("".join(lines[:-2]) + lines[-2][:20])
    missing = sum("cell" in json.loads(line) for line in lines[-2:])
    assert call(monkeypatch, IDENTITY, *arguments) == 0
    assert capsys.readouterr().err.count(" differ") == missing
    assert call(monkeypatch, IDENTITY, "--results", str(results), "--render", str(page)) == 0
    assert f"| cells run | {ran} of 9504 |" in page.read_text()
    assert "| differing tokens | 0 |" in page.read_text()
    wrong = json.loads(next(line for line in lines if '"cell"' in line)) | {"differing_rows": 1}
    results.write_text(json.dumps(wrong) + "\n")
    assert call(monkeypatch, IDENTITY, "--results", str(results), "--render", str(page)) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_a_right_sampler_is_rejected_as_seldom_as_promised() -> None:
    """Of 400 samples with many rare cells one in twenty has a p-value below 0.05; a G-test that is not corrected finds 44 of them."""
    random = np.random.default_rng(0)
    law = np.array([0.78, *[0.22 / 160] * 160])
    tree = {(): dict(enumerate(law.tolist()))} | {(token,): {} for token in range(len(law))}
    p_values = []
    for counts in random.multinomial(4000, law, size=400):
        texts = [(token, 0, 0) for token, count in enumerate(counts.tolist()) for _ in range(count)]
        cells, p = LAWS["g_test"](texts, tree)
        assert cells == 161
        p_values.append(p)
    assert 10 <= sum(p < 0.05 for p in p_values) <= 26


def test_laws_run_resume_and_render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, page = save_tiny(tmp_path / "checkpoint", max_position_embeddings=2048), tmp_path / "laws.md"
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.norm.weight"] *= 2.5  # peaked laws: texts that come more than once
    save_file(tensors, checkpoint / "model.safetensors")
    results = tmp_path / "laws.jsonl"
    arguments = ["--checkpoint", str(checkpoint), "--draws", "100", "--threads", "1", "--results", str(results), "--render", str(page)]
    assert call(monkeypatch, LAWS, *arguments) == 0
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| temperature")]
    tested = [tuple(row[1:4]) for row in rows if row[0] == "temperature 1"]
    chains = [(method, rule, "chain") for method, rule in itertools.product(METHODS.keys() - {"draft_model"}, ("coupled", "block"))]
    chains += [("draft_model", rule, "chain") for rule in RULES]
    trees = [("draft_model", name, "tree") for name, rule in RULES.items() if rule.trees]
    trees += [("eagle3", "coupled", "tree"), ("merged", "coupled", "tree")]
    assert sorted(tested) == sorted([("off", "off", "–"), *chains, *trees])
    assert all((float(row[7]) > 1) == (row[1] != "off") for row in rows if row[1] in ("off", "draft_model") or "four tokens" in row[0])

    # The last result is missing, and the one before it was cut off: they alone are tested again.
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:-2]) + lines[-2][:30])
    capsys.readouterr()
    assert call(monkeypatch, LAWS, *arguments) == 0
    assert capsys.readouterr().err.count("p = ") == 2
    assert results.read_text().splitlines(keepends=True) == lines
    wrong = json.loads(lines[0]) | {"p_value": 1e-4}
    results.write_text("".join([json.dumps(wrong) + "\n", *lines[1:]]))
    assert call(monkeypatch, LAWS, *arguments) == 4
    assert "of the 50 p-values are below 0.01, the smallest is 0.0001" in page.read_text()
