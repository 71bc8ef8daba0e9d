"""``specbuild run``: what it refuses, in one sentence each, and what an interruption leaves."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbuild.bundle import MANIFEST, Bundle
from specbuild.cli.main import run

Command = Callable[..., tuple[int, str, str]]


def write(file: Path, *documents: dict[str, Any]) -> str:
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], "temperature is -1.0, but must be at least 0"),
        (["--top-p", "0"], "top_p is 0.0, but must be above 0"),
        (["--max-tokens", "0"], "max_tokens is 0, but must be at least 1"),
        (["--min-tokens", "9", "--max-tokens", "8"], "min_tokens is 9, above max_tokens 8"),
        (["--stop", ""], "every stop string must have at least one character"),
        (["--stop-token-id", "999"], "stop_token_ids has token id 999, but the vocabulary ends at 256"),
        (["--speculation", "ngrm"], "speculation method 'ngrm' is unknown. Did you mean 'ngram'?"),
        (["--speculation", "off", "--draft-len", "2"], "draft_len is 2, but speculation is 'off'"),
        (["--draft-len", "8"], "draft_len is 8, but the engine verifies at most 7; raise speculation.max_draft_len"),
        (["--tree-budget", "8"], "tree_budget is 8, but the engine verifies at most 7; raise speculation.max_draft_len"),
        (["--tree-budget", "3", "--draft-len", "4"], "tree_budget is 3, below draft_len 4; raise it, or set it to 0 for chains"),
        (["--tree-budget", "7", "--verification", "block"], "tree_budget is 7, but verification 'block' judges chains alone"),
        (["--verification", "blok"], "verification rule 'blok' is unknown. Did you mean 'block'?"),
        (["--batch", "5"], "batch is 5, but the engine was built for 1 to 4"),
        (["--batch", "0"], "batch is 0, but"),
        (["--logprobs", "2"], "--logprobs 2 is shown with --json only"),
        (
            ["--max-tokens", "1024"],
            "--prompt: a prompt of 23 tokens and max_tokens 1024 exceed the 1024 that a sequence holds; lower max_tokens to 1001",
        ),
        (["--set", "target.precision=int4"], "--set target.precision=int4: a bundle's recipe is what it was built from"),
        (["-c", "smollm2-135m"], "give a recipe with -c or a bundle with --bundle (both was given)"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(run_tiny: Command, arguments: list[str], words: str) -> None:
    code, out, err = run_tiny("--prompt", "Hello", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["--prompt", "x" * 2000], b"", "error: --prompt: the prompt has 2018 tokens, but a sequence holds 1024 with its output"),
        (["--prompt", "", "--raw"], b"", "error: --prompt: the prompt has no tokens"),
        ([], b"", "error: stdin is empty"),
        ([], b"\xff\xfe", "error: stdin: not UTF-8 text (byte 0: invalid start byte)"),
        (["--prompts", "absent.jsonl"], b"", "error: absent.jsonl: cannot be read"),
        (["--prompts", "absent.jsonl", "--prompt", "x"], b"", "error: --prompt and --prompts were both given"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_one_sentence(run_tiny: Command, arguments: list[str], stdin: bytes, words: str) -> None:
    code, out, err = run_tiny(*arguments, stdin=stdin)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(words)


def test_one_bad_line_and_nothing_is_generated(run_tiny: Command, tmp_path: Path) -> None:
    good = {"prompt": "Hello"}
    file = write(tmp_path / "prompts.jsonl", good, {"prompt": "x" * 2000}, good)
    code, out, err = run_tiny("--prompts", file, "--json")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {file}:2: the prompt has 2018 tokens")
    Path(file).write_text('{"prompt": "Hello"}\n{"promt": "Hello"}\n')
    code, out, err = run_tiny("--prompts", file, "--json")
    assert (code, out) == (2, "")
    assert err == f"error: {file}:2: exactly one of prompt, turns and messages is needed (seen: 'promt')\n"


def test_a_draft_length_needs_a_method(run_tiny: Command, tiny_recipe: Path, home: Path) -> None:
    recipe = ("-c", str(tiny_recipe), "--set", "speculation.method=off")
    code, out, err = run_tiny("--prompt", "Hello", "--draft-len", "3", bundle=recipe)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "error: draft_len is 3, but the recipe's method is 'off'; name one with --speculation"
    assert run_tiny("--prompt", "Hello", "--draft-len", "3", "--speculation", "ngram", "--max-tokens", "3", bundle=recipe)[0] == 0


def test_no_bundle_is_refused_before_stdin_is_read(run_tiny: Command) -> None:
    code, out, err = run_tiny(bundle=())
    assert (code, out) == (2, "")
    assert "(neither was given)" in err
    code, _, err = run_tiny(bundle=("--bundle", "absent"))
    assert code == 2
    assert err.startswith("error: absent: no bundle in ")


class Terminal(io.TextIOWrapper):
    """Where a person would type."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_no_prompt(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(io.BytesIO(b"typed")))
    assert run(["run", "--bundle", str(tiny_bundle)]) == 2
    assert capsys.readouterr() == ("", "error: no prompt: give --prompt TEXT, --prompts FILE.jsonl, or text on stdin\n")


def resealed(bundle: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a bundle whose engines say something else, as if they had been built so."""
    shutil.copytree(bundle, folder)
    manifest = Bundle.open(folder).manifest
    engines = tuple(engine.model_copy(update=changes) for engine in manifest.engines)
    (folder / MANIFEST).write_text(manifest.model_copy(update={"engines": engines}).sealed().model_dump_json())
    return folder


def test_a_plan_for_a_gpu_that_is_not_here_ends_with_3(run_tiny: Command, tiny_bundle: Path, tmp_path: Path) -> None:
    changes = {"backend": "tensorrt-rtx", "flavour": "tensorrt_rtx", "version": "0.0", "compute_capabilities": ("sm50",)}
    folder = resealed(tiny_bundle, tmp_path / "rtx", **changes)
    code, out, err = run_tiny("--prompt", "Hello", bundle=("--bundle", str(folder)))
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("error: ")


def test_what_was_not_measured_is_noted_once(run_tiny: Command, tiny_bundle: Path, tmp_path: Path) -> None:
    folder = resealed(tiny_bundle, tmp_path / "unprobed", probe=None)
    file = write(tmp_path / "prompts.jsonl", {"prompt": "one"}, {"prompt": "two"})
    code, out, err = run_tiny("--prompts", file, "--json", "--max-tokens", "3", bundle=("--bundle", str(folder)))
    assert (code, len(out.splitlines())) == (0, 2)
    assert err == "note: the engine was built with --no-probe: whether its bits are invariant is not known\n"


def test_an_interruption_leaves_whole_lines_and_130(tiny_bundle: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "prompts.jsonl", *({"prompt": f"prompt {n}"} for n in range(3000)))
    command = [sys.executable, "-m", "specbuild", "run", "--bundle", str(tiny_bundle), "--prompts", file, "--max-tokens", "400", "--json"]
    # Whoever runs the tests in the background lets them, and so the program, ignore the signal.
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ, preexec_fn=heard) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "interrupted"
    written = [json.loads(line)["id"] for line in (first + rest).splitlines()]
    assert written == list(range(len(written)))
    assert len(written) < 3000
    assert rest == "" or rest.endswith("\n")
