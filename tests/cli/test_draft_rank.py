"""``specbuild draft rank`` on tiny checkpoints: what is measured, who is refused, and what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_checkpoint import save_tiny

from specbuild.cli.main import run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with a draft and a cascade of its own, prompts, a stranger's checkpoint, one of another vocabulary; and a store."""
    folder = tmp_path_factory.mktemp("rank")
    save_tiny(folder / "target")
    save_tiny(folder / "stranger", seed=1, num_hidden_layers=1)
    save_tiny(folder / "foreign", tokens=("<|other|>",))
    (folder / "tiny.yaml").write_text(
        f"name: tiny\ncheckpoint: {folder / 'target'}\ntarget: {{max_seq_len: 128, max_batch_size: 2}}\n"
        "speculation: {method: cascade, draft: {}, drafts: {middle: {precision: int8}}, cascade: [ngram, draft, middle]}\n"
    )
    documents = [{"task": "xy"[n % 2], "prompt": f"prompt {n}"} for n in range(4)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    return folder


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Command:
    """``specbuild draft rank`` in ``folder``, 12 tokens a prompt: exit code, stdout, stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPECBUILD_HOME", str(folder / "store"))

    def call(candidates: str, *arguments: str) -> tuple[int, str, str]:
        options = ["-c", "tiny.yaml", "--prompts", "prompts.jsonl", "--max-tokens", "12", "--threads", "1"]
        code = run(["draft", "rank", *options, "--candidates", candidates, *arguments])
        return code, *capsys.readouterr()

    return call


def test_each_candidate_is_measured_beside_plain_decoding_and_one_that_cannot_draft_is_listed(command: Command, folder: Path) -> None:
    code, out, err = command("@int8,stranger,foreign,absent@int8,@int8", "--draft-len", "2,4", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert list(report) == ["choice", "rows", "refused", "machine", "bundle"]
    assert Path(report["bundle"]).name.startswith("tiny-rank-"), "the recipe's own bundle stays the newest of its name"
    rows = {(row["method"], row["draft_len"], row["task"]): row for row in report["rows"]}
    variants = [("off", 0), *((method, length) for method in ("ngram", "@int8", "stranger@int4", "foreign@int4") for length in (2, 4))]
    assert list(rows) == [(*variant, task) for variant in variants for task in ("x", "y", "all")]
    assert all(row["identical"] for row in rows.values())
    twin = rows["@int8", 4, "all"]
    assert twin["acceptance_by_position"] == [1, 1, 1, 1], "the target drafts for itself"
    assert rows["stranger@int4", 4, "all"]["mean_acceptance_length"] < twin["mean_acceptance_length"]
    assert list(report["refused"]) == ["absent@int8"]
    assert "absent" in report["refused"]["absent@int8"]


def test_the_fastest_comes_first_and_the_last_line_says_what_to_take(command: Command) -> None:
    code, out, err = command("@int8,absent,stranger", "--limit", "1", "--batch", "2", "--temperature", "1")
    assert code == 0, err
    rows = re.findall(r"^ (off|ngram|@int8|stranger@int4) +(?:4|-) +- +2 +all +\S+ +(\S+) .* yes *$", out, re.MULTILINE)
    assert sorted(name for name, _ in rows) == ["@int8", "ngram", "off", "stranger@int4"]
    assert [float(ratio) for _, ratio in rows] == sorted((float(ratio) for _, ratio in rows), reverse=True)
    assert re.search(r"^ absent@int4 +absent: ", out, re.MULTILINE)
    assert out.splitlines()[-1].startswith("take ")


def test_ratios_of_a_single_group_come_with_a_warning(command: Command) -> None:
    note = "note: one group of prompts has no spread"
    (folder := Path("one")).mkdir(exist_ok=True)
    (folder / "prompt.jsonl").write_text('{"prompt": "alone"}\n')
    assert note in command("@int8", "--prompts", "one/prompt.jsonl")[2]
    assert note not in command("@int8")[2]


def test_without_one_candidate_that_can_draft_nothing_is_built(command: Command, folder: Path) -> None:
    code, out, err = command("absent", "--set", "target.max_seq_len=96")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: no candidate can draft for {folder / 'target'}: absent@int4: absent")


def test_a_target_that_cannot_be_built_is_no_candidates_fault(command: Command) -> None:
    code, out, err = command("@int8", "--set", "target.max_seq_len=512")
    assert (code, out) == (2, "")
    assert err.startswith("error: target.max_seq_len 512 is above the 256 positions of the target ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft-len", "2,8"], "error: draft_len is 8, but the recipe's engines verify at most 7; raise speculation.max_draft_len"),
        (["--draft-len", "0"], "error: draft_len is 0, but must be at least 1"),
        (["--batch", "3"], "error: batch is 3, but the engine was built for 1 to 2"),
        (["--prompts", "absent.jsonl"], "error: absent.jsonl: cannot be read"),
        (["--temperature", "-1"], "error: temperature is -1.0"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_before_anything_is_built(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("SPECBUILD_HOME", str(tmp_path / "store"))
    code, out, err = command("@int8", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(words)
    assert not (tmp_path / "store").exists()


def test_differing_output_ends_with_4(command: Command) -> None:
    code, out, err = command("@int8,stranger", "--verification", "block", "--temperature", "1")
    assert code == 4
    assert "error: output differs from plain decoding on some of the 4 prompts: " in err
    assert out.splitlines()[-1].startswith("take ")
