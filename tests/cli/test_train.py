"""``specbuild train``: a head out of nothing, found by the build that names it; user's prompts; refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_checkpoint import END, save_tiny

from specbuild.cli.main import run

Command = Callable[..., tuple[int, str, str]]
CHAT_TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}" + END + "{% endfor %}[assistant]"
ROOT = str(Path(__file__).parents[2])
SHORT = ("--tokens", "300", "--steps", "3", "--draft-vocabulary", "64", "--threads", "1")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    checkpoint = save_tiny(tmp_path / "checkpoint", num_hidden_layers=6)
    (checkpoint / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    file = tmp_path / "tiny.yaml"
    file.write_text(f"name: tiny\ncheckpoint: {checkpoint}\ntarget: {{max_seq_len: 256, precision: float32}}\n")
    return file


@pytest.mark.slow
def test_a_head_out_of_nothing_is_built_beside_its_target(command: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbuild.builders.training.sources.SHARD_DIALOGUES", 12)
    code, out, err = command("train", "eagle3", "-c", str(recipe), *SHORT)
    assert code == 0, err
    assert out == "tiny-eagle3\n"
    facts = json.loads((Path("tiny-eagle3") / "provenance.json").read_text())
    assert facts["role"] == "eagle3"
    assert facts["settings"]["steps"] == 3
    assert facts["held_out"]["tau"] >= 1
    head = "speculation.heads.eagle3.checkpoint=tiny-eagle3"
    code, out, err = command("engine", "build", "-c", str(recipe), "--no-probe", "--json", "--set", head)
    assert code == 0, err
    assert [engine["role"] for engine in json.loads(out)["engines"]] == ["target", "eagle3"]
    # Again: nothing is written or read anew, the checkpoint has all steps.
    code, _, err = command("train", "eagle3", "-c", str(recipe), *SHORT)
    assert code == 0, err
    assert "the target writes" not in err
    assert "features:" not in err


@pytest.mark.slow
def test_a_process_that_was_killed_goes_on_to_the_same_head(
    command: Command, recipe: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 7)
    arguments = ("train", "mtp", "-c", str(recipe), "--steps", "100", "--draft-vocabulary", "64", "--threads", "1", "--text", "text.txt")
    process = subprocess.Popen(
        [sys.executable, "-m", "specbuild", *arguments, "--out", "head"], stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": ROOT}
    )
    with process:
        while process.poll() is None and not list(home.glob("training/*/*.pt")):
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "still training"
    assert not Path("head").exists()

    code, _, err = command(*arguments, "--out", "head")
    assert code == 0, err
    assert "step 50 of" not in err
    monkeypatch.setenv("SPECBUILD_HOME", str(tmp_path / "elsewhere"))
    code, _, err = command(*arguments, "--out", "unbroken")
    assert code == 0, err
    assert "step 50 of" in err
    resumed, unbroken = (load_file(Path(name) / "model.safetensors") for name in ("head", "unbroken"))
    assert resumed.keys() == unbroken.keys()
    for name, tensor in unbroken.items():
        np.testing.assert_allclose(resumed[name], tensor, rtol=1e-3, atol=1e-3, err_msg=name)


def test_a_users_prompts_are_learned(command: Command, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "abc"}\n{"messages": [{"role": "user", "content": "d"}]}\n')
    code, out, err = command("train", "medusa", "-c", str(recipe), *SHORT, "--prompts", "mine.jsonl", "--out", "head", "--json")
    assert code == 0, err
    assert json.loads(out)["path"] == "head"
    assert json.loads((tmp_path / "head" / "provenance.json").read_text())["texts"]["origin"].startswith("mine.jsonl ")


def test_more_text_later_is_another_vocabulary_and_another_head(
    command: Command, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it began with is not written again."""
    monkeypatch.setattr("specbuild.builders.training.sources.SHARD_PIECES", 1)
    (tmp_path / "text.txt").write_text("a" * 512 + "".join(map(chr, range(97, 127))) * 9)
    arguments = ("train", "medusa", "-c", str(recipe), "--steps", "3", "--draft-vocabulary", "64", "--threads", "1", "--text", "text.txt")
    ids, shards = [], []
    for tokens in ("500", "700"):
        code, _, err = command(*arguments, "--tokens", tokens, "--out", tokens)
        assert code == 0, err
        assert "features: shard 1 of" in err
        ids.append(load_file(Path(tokens) / "model.safetensors")["d2t"].tolist())
        shards.append(json.loads((Path(tokens) / "provenance.json").read_text())["texts"]["shards"])
    assert ids[0] != ids[1]
    assert shards[1].items() > shards[0].items()
    code, _, err = command(*arguments, "--tokens", "700", "--out", "700")
    assert code == 0, err
    assert "features:" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--prompts", "a", "--text", "b"), "--prompts and --text were both given"),
        (("--text", "nowhere.txt"), "nowhere.txt: no such file"),
    ],
)
def test_refusals(command: Command, recipe: Path, arguments: tuple[str, ...], sentence: str) -> None:
    code, _, err = command("train", "mtp", "-c", str(recipe), *arguments)
    assert code == 2
    assert sentence in err


def test_too_little_text_is_refused(command: Command, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("abcdef")
    code, _, err = command("train", "mtp", "-c", str(recipe), *SHORT, "--text", "short.txt")
    assert code == 2
    assert "1 texts with something to learn" in err


def test_without_torch_it_says_what_to_install(command: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = command("train", "mtp", "-c", str(recipe))
    assert code == 3
    assert "pip install 'specbuild[train]'" in err
