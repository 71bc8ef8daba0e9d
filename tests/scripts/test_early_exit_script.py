"""scripts/early_exit.py: what it says of a cut is what the cut target really does."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoint import save_tiny

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import StepCost
from specbuild.recipe import Recipe
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "early_exit.py"))
LAYERS, TOKENS = 4, 40
PROMPTS = ("abc abc", "one two three", "?")


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    target = {"precision": "int4", "max_seq_len": 128}
    checkpoint = save_tiny(tmp_path / "checkpoint", num_hidden_layers=LAYERS, seed=3)
    return {"name": "tiny", "checkpoint": str(checkpoint), "target": target}


def prompts(folder: Path) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return file


@pytest.mark.usefixtures("home")
def test_rounds_are_those_of_the_cut_target(recipe: dict[str, Any], tmp_path: Path) -> None:
    whole = Recipe.model_validate(recipe)
    written = SCRIPT["texts"](whole, prompts(tmp_path), None, TOKENS, None)
    chosen = SCRIPT["measured"](whole, written)
    assert [choice.layers for choice in chosen] == [1, 2, 3]
    assert max(choice.tau for choice in chosen) > 1.1
    params = {"temperature": 0.0, "max_tokens": TOKENS}
    for choice in chosen:
        speculation = {"early_exit": {"layers": choice.layers}, "method": "early_exit", "draft_len": choice.draft_len}
        bundle = build(Recipe.model_validate(recipe | {"speculation": speculation}), store=Store(tmp_path / "store")).bundle
        answers = Generator(bundle).generate([text.prompt for text in written], SamplingParams(**params))
        assert [answer.token_ids for answer in answers] == [text.answer for text in written]
        stats = [answer.stats for answer in answers]
        assert choice.tau == pytest.approx(sum(each.emitted_tokens for each in stats) / sum(each.num_spec_steps for each in stats))


def test_the_best_length_is_weighed_by_what_passes_take() -> None:
    """An exit that is always right after three layers, and never before."""

    def costs(one: float, each: float) -> list[StepCost]:
        return [StepCost(batch=1, step=step, context=0, seconds=one + each * step) for step in (1, 2, 4)]

    found = [np.array([[False] * 12, [False] * 12, [True] * 12])]
    measured = {"target": costs(8.0, 0.0), "first": costs(2.0, 0.0), "but one": costs(4.0, 0.0)}
    first, second, third = SCRIPT["choices"](found, measured, 3, 50)
    assert (third.first, third.draft_len, third.tau) == (1.0, 3, 4.0)
    assert third.ratio == pytest.approx(4 * 8 / (8 + 3 * 4))
    assert (second.first, second.draft_len, second.tau) == (0.0, 1, 1.0)
    assert (first.ratio, second.ratio) == (pytest.approx(8 / (8 + 2)), pytest.approx(8 / (8 + 3)))


@pytest.mark.usefixtures("home")
def test_it_prints_a_line_a_cut_and_says_which(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(recipe))
    monkeypatch.setattr(
        sys, "argv", ["early_exit.py", "-c", str(file), "--prompts", str(prompts(tmp_path)), "--limit", "1", "--max-tokens", "9"]
    )
    assert SCRIPT["main"]() == 0
    *_, last = lines = capsys.readouterr().out.splitlines()
    assert sum(line.strip().startswith(("1 ", "2 ", "3 ")) for line in lines) == LAYERS - 1
    assert last.startswith(("none pays: the best, ", "speculation: {early_exit: {layers: "))
    assert last.endswith(" × plain decoding")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--set", "backend=tensorrt-rtx"])
    with pytest.raises(SystemExit) as exit_:
        SCRIPT["main"]()
    assert exit_.value.code == 2
    assert "early exit runs on onnxruntime alone" in capsys.readouterr().err
