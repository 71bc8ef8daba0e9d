"""The script behind docs/methods.md: a cell at a time, resumed where it was cut off, a page that says what is missing."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_checkpoint import save_tiny

METHODS = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "methods.py"))
Script = Callable[..., int]


@pytest.fixture
def script(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Runs it in a folder that has a recipe, whose target drafts for itself, and prompts of two tasks."""
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "checkpoint")
    Path("tiny.yaml").write_text(
        f"name: tiny\ncheckpoint: {tmp_path / 'checkpoint'}\ntarget: {{max_seq_len: 64, max_batch_size: 1}}\n"
        "speculation: {draft_len: 2, max_draft_len: 3, draft: {precision: int8}}\n"
    )
    documents = [{"task": "xy"[n % 2], "prompt": f"prompt {n}"} for n in range(6)]
    Path("prompts.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["methods.py", *arguments])
        code: int = METHODS["main"]()
        return code

    return call


MEASURE = ["--prompts", "prompts.jsonl", "-c", "tiny.yaml", "--per-task", "2", "--max-tokens", "8", "--threads", "1"]


def test_it_goes_on_where_it_was_cut_off_and_says_what_is_missing(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert script(*MEASURE) == 0
    assert re.findall(r"^\d/\d .*", capsys.readouterr().err, re.MULTILINE) == [
        "1/4 tiny 0.0 x",
        "2/4 tiny 0.0 y",
        "3/4 tiny 1.0 x",
        "4/4 tiny 1.0 y",
    ]
    results = Path("methods.jsonl")
    plan, *cells = results.read_text().splitlines(keepends=True)
    assert len(cells) == 4
    results.write_text(plan + "".join(cells[:3]) + cells[3][:50])
    assert script("--render", "page.md") == 0
    page = Path("page.md").read_text()
    assert "3 of 4 cells are measured" in page
    assert page.count("**Missing:") == 1
    assert "## int8 target (`tiny`), temperature 1\n\nDraft models: draft (int8).\n\n**Missing: y.**\n" in page

    assert script(*MEASURE, "--render", "page.md") == 0
    assert re.findall(r"^\d/\d .*", capsys.readouterr().err, re.MULTILINE) == []
    assert script(*MEASURE) == 0
    assert re.findall(r"^\d/\d .*", capsys.readouterr().err, re.MULTILINE) == ["1/1 tiny 1.0 y"]
    assert script("--render", "page.md") == 0
    page = Path("page.md").read_text()
    assert "4 of 4 cells are measured" in page
    assert "Missing" not in page
    assert "Prompts a task: at most 2. Tokens an answer: at most 8." in page
    assert "cores, threads of an engine: 1; " in page
    # The target as its own draft: every draft is right, three tokens a pass but for the end of 8.
    own = re.findall(r"^\| draft_model, k = 2 \| (\S+) \| 1.00 1.00 \| \S+ \| \S+ \(\S+\) \| 0 \|$", page, re.MULTILINE)
    assert own == ["2.67", "2.67"]
    assert "| method | x | y | all |" in page
    drafting = ("ngram", "suffix", "draft_model", "cascade (ngram → draft)", "hybrid (ngram, else draft_model)")
    for name in ("plain", *(f"{method}, k {length}" for method in drafting for length in ("= 2", "chosen"))):
        assert page.count(f"| {name} | ") == 10, "a summary and four tables at each temperature"

    assert script(*MEASURE, "--temperature", "0", "--draft-len", "3") == 0
    assert re.findall(r"^\d/\d .*", capsys.readouterr().err, re.MULTILINE) == ["1/2 tiny 0.0 x", "2/2 tiny 0.0 y"]


def test_a_differing_token_is_counted_and_ends_with_4(script: Script) -> None:
    arguments = [*MEASURE, "--temperature", "0"]
    assert script(*arguments) == 0
    lines = [json.loads(line) for line in Path("methods.jsonl").read_text().splitlines()]
    variant = {"method": "suffix", "draft_len": 2, "batch": 1, "tree_budget": None}
    tokens = next(run for run in lines[1]["runs"] if run["variant"] == variant)["answers"][0]["tokens"]
    tokens[3] += 1
    del tokens[-1]
    Path("methods.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert script("--render", "page.md") == 4
    summary = re.findall(r"^\| ([^|]+) \|.* \| \d\S* \(\S+\) \| (\d+) \|$", Path("page.md").read_text(), re.MULTILINE)
    assert [(name, count) for name, count in summary if count != "0"] == [("suffix, k = 2", "2")]
    assert len(summary) > 5


def test_a_cascade_stands_beside_each_of_its_models_and_recipes_take_turns(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = Path("tiny.yaml").read_text()
    three = tiny.replace("name: tiny", "name: three").replace(
        "int8}}", "int4}, drafts: {middle: {precision: int8}}, cascade: [draft, middle]}"
    )
    Path("three.yaml").write_text(three)
    assert script(*MEASURE, "-c", "three.yaml", "--temperature", "1") == 0
    turns = ["1/4 tiny 1.0 x", "2/4 three 1.0 x", "3/4 tiny 1.0 y", "4/4 three 1.0 y"]
    assert re.findall(r"^\d/\d .*", capsys.readouterr().err, re.MULTILINE) == turns
    assert script("--render", "page.md") == 0
    one, other = Path("page.md").read_text().split("## int8 target (`three`)")
    assert "draft.middle" not in one
    assert "draft.middle, k chosen" not in other, "what it costs is not known to who chooses"
    assert "Draft models: draft (int4), draft.middle (int8)." in other
    tau = {
        found[0]: found[1]
        for found in re.findall(r"^\| ([^ ,]+)[^|]*, k = 2 \| (\S+) \| [01.\d ]+ \| \S+ \| \S+ \(\S+\) \| 0 \|$", other, re.MULTILINE)
    }
    assert tau["draft.middle"] == tau["cascade"] == "2.67", "the target's own build is always right, whatever drafts for it"
    assert float(tau["draft_model"]) < 2.67
    assert re.search(r"The cascade (pays|does not surely pay|does not pay) beside \S+ alone: \d\.\d\d \(", other)
