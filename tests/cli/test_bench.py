"""``specbuild bench`` on a tiny bundle: the shape of its report, its exit codes, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specbuild.bench.measure import variants
from specbuild.bench.report import ALL, report
from specbuild.bundle import Bundle, EngineEntry, Probe
from specbuild.cli.bench import measured
from specbuild.cli.main import run
from specbuild.errors import RequestError
from specbuild.prompts import read_prompts
from specbuild.runtime.proposers import available
from specbuild.runtime.sampling import SamplingParams

Command = Callable[..., tuple[int, str, str]]
ROW = [
    "method",
    "draft_len",
    "batch",
    "tree_budget",
    "task",
    "tokens_per_second",
    "speedup",
    "speedup_low",
    "speedup_high",
    "mean_acceptance_length",
    "overhead",
    "identical",
    "lossy",
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    documents = [{"id": n, "task": "xy"[n % 2], "turns": [f"prompt {n} prompt {n}"]} for n in range(6)]
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return file


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tiny_bundle: Path, prompts: Path) -> Command:
    """``specbuild bench`` on the tiny bundle and the prompts, 12 tokens each: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["bench", "--bundle", str(tiny_bundle), "--prompts", str(prompts), "--max-tokens", "12", *arguments])
        return code, *capsys.readouterr()

    return call


def test_json_has_the_documented_shape(command: Command, tiny_bundle: Path) -> None:
    code, out, err = command("--json", "--draft-len", "2,auto", "--batch", "2,1", "--limit", "2")
    assert code == 0, err
    report = json.loads(out)
    assert list(report) == ["rows", "machine", "bundle"]
    assert report["bundle"] == str(tiny_bundle)
    assert report["machine"].keys() >= {"system", "processor", "cores", "threads", "python", "specbuild", "onnxruntime"}
    assert all(list(row) == ROW for row in report["rows"])
    measured = [("off", 0), *((method, length) for method in available(Bundle.open(tiny_bundle)) for length in (2, None))]
    expected = [(*variant, batch, task) for batch in (1, 2) for variant in measured for task in ("x", "y", "all")]
    assert [(row["method"], row["draft_len"], row["batch"], row["task"]) for row in report["rows"]] == expected
    for row in report["rows"]:
        assert row["identical"] is True
        assert row["tokens_per_second"] > 0
        assert 0 <= row["overhead"] < 1
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        if row["method"] == "off":
            assert (row["speedup"], row["speedup_low"], row["speedup_high"], row["mean_acceptance_length"]) == (1, 1, 1, 1)


def test_a_table_and_a_last_line_in_plain_words(command: Command) -> None:
    code, out, _ = command("--methods", "ngram", "--temperature", "0.9", "--top-p", "0.9")
    lines = out.splitlines()
    assert code == 0
    for column in (
        "method",
        "draft_len",
        "tree",
        "batch",
        "task",
        "tok/s",
        "ratio",
        "spread",
        "τ",
        "accepted by position",
        "overhead",
        "identical",
    ):
        assert column in out
    cells = [line.split() for line in lines if line.strip().startswith(("off", "ngram"))]
    assert [(row[0], row[4], row[-1]) for row in cells] == [(m, t, "yes") for m in ("off", "ngram") for t in ("x", "y", "all")]
    assert lines[-1].startswith("batch 1: ")
    assert "do not speculate" in lines[-1] or "ngram with draft_len 4 pays" in lines[-1]


def priced(bundle: Bundle, seconds: dict[str, float] | None) -> Bundle:
    """``bundle`` as if a pass of each role had taken so long, whatever it reads; None: as if nothing had been measured."""

    def probe(entry: EngineEntry) -> Probe | None:
        if seconds is None or entry.probe is None:
            return None
        costs = [cost.model_copy(update={"seconds": seconds[entry.role]}) for cost in entry.probe.step_costs]
        return entry.probe.model_copy(update={"step_costs": tuple(costs)})

    engines = tuple(entry.model_copy(update={"probe": probe(entry)}) for entry in bundle.manifest.engines)
    return dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"engines": engines}))


def test_auto_drafts_as_much_as_pays(tiny_bundle: Path, prompts: Path) -> None:
    bundle, plan = Bundle.open(tiny_bundle), [variants(["draft_model"], [2, None], 1)]
    items, params = read_prompts(prompts), SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    assert [str(variant) for variant in plan[0]] == ["off", "draft_model with draft_len 2", "draft_model with draft_len auto"]

    def taus(target: float, draft: float) -> list[float]:
        rows = report(measured(priced(bundle, {"target": target, "draft": draft}), items, plan, params, threads=1))
        assert all(row.identical for row in rows)
        return [row.mean_acceptance_length for row in rows if row.task == ALL]

    off, fixed, auto = taus(target=0.001, draft=1)
    assert off == 1
    assert auto < 1.05 < fixed, "a draft that costs more than it saves is made now and then, to see whether it still does"
    assert taus(target=1, draft=0.001)[2] > fixed, "one that costs nothing, and may be as long as the engine takes"
    with pytest.raises(RequestError, match="draft_len is auto, but the bundle was built with --no-probe"):
        measured(priced(bundle, None), items, plan, params, threads=1)


def test_differing_output_is_printed_and_ends_with_4(command: Command) -> None:
    """Block verification keeps the law and not the tokens, so here they differ."""
    code, out, err = command("--methods", "draft_model", "--verification", "block", "--temperature", "1", "--json")
    assert code == 4
    rows = {(row["method"], row["task"]): row["identical"] for row in json.loads(out)["rows"]}
    assert rows["off", "all"] is True
    assert rows["draft_model", "all"] is False
    last = err.splitlines()[-1]
    assert last.startswith(
        "error: output differs from plain decoding on some of the 6 prompts: draft_model with draft_len 4 at batch 1 on "
    )


def test_a_lossy_recipe_claims_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path, tiny_recipe: Path, prompts: Path
) -> None:
    """The same engines, and ``lossy`` where ``yes`` would stand; outputs that differ are no error then."""
    monkeypatch.setenv("SPECBUILD_HOME", str(tiny_bundle.parent))
    asked = ["bench", "-c", str(tiny_recipe), "--set", "speculation.lossy=typical", "--prompts", str(prompts), "--methods", "draft_model"]
    assert run([*asked, "--max-tokens", "12", "--temperature", "1"]) == 0
    out, err = capsys.readouterr()
    assert "note: lossy: 'typical' acceptance (speculation.lossy) keeps drafts that change the law of the output" in err
    cells = [line.split() for line in out.splitlines() if line.strip().startswith(("off", "draft_model"))]
    assert [(row[0], row[-1]) for row in cells] == [("off", "yes")] * 3 + [("draft_model", "lossy")] * 3
    assert run([*asked, "--max-tokens", "12", "--temperature", "1", "--verification", "coupled"]) == 0
    out, err = capsys.readouterr()
    assert "lossy" not in out + err, "a lossless rule that is asked for is kept"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "ngram,drft_model"], "error: speculation method 'drft_model' is unknown. Did you mean 'draft_model'?"),
        (["--draft-len", "2,8"], "error: draft_len is 8, but the engine verifies at most 7"),
        (["--tree-budget", "0,8"], "error: tree_budget is 8, but"),
        (["--draft-len", "4", "--tree-budget", "3"], "error: tree_budget is 3, below draft_len 4; raise it, or set it to 0 for chains"),
        (["--draft-len", "0"], "error: draft_len is 0, but must be at least 1; `off` is always measured"),
        (["--batch", "1,5"], "error: batch is 5, but the engine was built for 1 to 4"),
        (["--batch", "0"], "error: batch is 0"),
        (["--temperature", "-1"], "error: temperature is -1.0"),
        (["--verification", "x"], "error: verification rule 'x' is unknown."),
        (["--prompts", "absent.jsonl"], "error: absent.jsonl: cannot be read"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(command: Command, arguments: list[str], words: str) -> None:
    code, out, err = command(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(words)


@pytest.mark.parametrize("arguments", [["--draft-len", "two"], ["--batch", "1,,2"], ["--limit", "0"]])
def test_what_is_no_number_is_wrong_usage(command: Command, arguments: list[str]) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: specbuild bench" in err


def test_a_prompt_that_does_not_fit_is_named_and_nothing_is_measured(command: Command, prompts: Path) -> None:
    with prompts.open("a") as file:
        file.write(json.dumps({"prompt": "x" * 1010}) + "\n")
    code, out, err = command()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {prompts}:7: the prompt has 1028 tokens")
