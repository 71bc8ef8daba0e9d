"""``specbuild run``: the shapes it prints, where each prompt may come from, and what it refuses."""

from __future__ import annotations

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
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams

STATS = [
    "prompt_tokens",
    "emitted_tokens",
    "num_spec_steps",
    "num_draft_tokens",
    "num_accepted_tokens",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_by_position",
    "prefill_seconds",
    "decode_seconds",
    "engine_seconds",
    "draft_seconds",
    "tokens_per_second",
]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> Command:
    """``specbuild run --bundle <tiny>`` with arguments: exit code, stdout, stderr."""

    def call(*arguments: str, stdin: bytes = b"", bundle: tuple[str, ...] = ("--bundle", str(tiny_bundle))) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = run(["run", *bundle, *arguments])
        return code, *capsys.readouterr()

    return call


def answers(said: tuple[int, str, str]) -> list[dict[str, Any]]:
    code, out, err = said
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def write(file: Path, *documents: dict[str, Any]) -> str:
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(file)


def test_json_has_the_documented_shape_and_the_generators_answer(command: Command, tiny_bundle: Path) -> None:
    (answer,) = answers(command("--prompt", "Hello", "--raw", "--max-tokens", "12", "--json"))
    assert list(answer) == ["id", "text", "token_ids", "finish_reason", "seed", "stats"]
    assert list(answer["stats"]) == STATS
    (expected,) = Generator.open(tiny_bundle).generate(["Hello"], SamplingParams(temperature=0, max_tokens=12))
    seen = (answer["id"], answer["text"], tuple(answer["token_ids"]), answer["finish_reason"])
    assert seen == (0, expected.text, expected.token_ids, expected.finish_reason)
    stats = answer["stats"]
    assert stats["prompt_tokens"] == 5
    assert stats["emitted_tokens"] == len(answer["token_ids"])
    assert stats["emitted_tokens"] == stats["num_spec_steps"] + stats["num_accepted_tokens"]
    assert stats["tokens_per_second"] == pytest.approx(stats["emitted_tokens"] / stats["decode_seconds"])


def test_a_line_a_prompt_in_their_order_whatever_the_batch(command: Command, tmp_path: Path) -> None:
    # The first prompts run longest: with a batch, later ones end before them.
    documents = [{"id": f"p{n}", "task": f"t{n % 2}", "prompt": "ab" * (9 - n)} for n in range(9)]
    file = write(tmp_path / "prompts.jsonl", *documents)
    alone = answers(command("--prompts", file, "--json", "--max-tokens", "20"))
    together = answers(command("--prompts", file, "--json", "--max-tokens", "20", "--batch", "4"))
    for one, other, document in zip(alone, together, documents, strict=True):
        assert list(one) == ["id", "task", "text", "token_ids", "finish_reason", "seed", "stats"]
        assert (one["id"], one["task"]) == (other["id"], other["task"]) == (document["id"], document["task"])
        assert (one["text"], one["token_ids"]) == (other["text"], other["token_ids"])


@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.8", "--top-p", "0.95", "--repetition-penalty", "1.1", "--seed", "7")])
def test_output_does_not_depend_on_speculation(command: Command, sampling: tuple[str, ...]) -> None:
    def output(*arguments: str) -> list[int]:
        return list(answers(command("--prompt", "abcabcabc", "--json", "--max-tokens", "40", *sampling, *arguments))[0]["token_ids"])

    plain = output("--speculation", "off")
    assert len(set(plain)) > 3
    for method in ("ngram", "draft_model"):
        for length in ("1", "7"):
            assert output("--speculation", method, "--draft-len", length) == plain


def test_a_drawn_seed_is_reported_and_gives_the_text_again(command: Command) -> None:
    arguments = ("--prompt", "Hello", "--json", "--temperature", "1", "--max-tokens", "20")
    (first,) = answers(command(*arguments))
    (second,) = answers(command(*arguments))
    assert first["seed"] != second["seed"]
    assert first["token_ids"] != second["token_ids"]
    assert answers(command(*arguments, "--seed", str(first["seed"])))[0]["token_ids"] == first["token_ids"]


def test_text_goes_to_stdout_and_figures_to_stderr(command: Command, tmp_path: Path) -> None:
    file = write(tmp_path / "prompts.jsonl", {"prompt": "one"}, {"prompt": "two"})
    texts = [answer["text"] for answer in answers(command("--prompts", file, "--json", "--max-tokens", "9"))]
    code, out, err = command("--prompts", file, "--max-tokens", "9", "--seed", "5")
    assert (code, out) == (0, f"{texts[0]}\n\n{texts[1]}\n")
    lines = err.splitlines()
    assert len(lines) == 2, "a measured, invariant bundle has no notes"
    for line in lines:
        assert "tok/s" in line
        assert "τ" in line
        assert line.endswith("9 tokens (length) · speculation ngram · seed 5")


def test_stdin_is_a_prompt(command: Command) -> None:
    given = answers(command("--prompt", "héllo\nyou", "--json"))[0]["token_ids"]
    assert answers(command("--json", stdin="héllo\nyou\n".encode()))[0]["token_ids"] == given


def test_chat_where_there_is_a_template_unless_raw(command: Command, tmp_path: Path) -> None:
    def tokens(*arguments: str) -> int:
        return int(answers(command("--json", "--max-tokens", "1", *arguments))[0]["stats"]["prompt_tokens"])

    rendered = len("[user]") + 5 + 1 + len("[assistant]")
    assert tokens("--prompt", "Hello") == tokens("--prompt", "Hello", "--chat") == rendered
    assert tokens("--prompt", "Hello", "--raw") == 5
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "Hello"}]
    file = write(tmp_path / "messages.jsonl", {"messages": messages})
    assert tokens("--prompts", file) == tokens("--prompts", file, "--raw") == rendered + len("[system]x") + 1
    assert tokens("--prompts", write(tmp_path / "turns.jsonl", {"turns": ["Hello", "Bye"]})) == rendered


def test_a_stop_string_ends_the_text_before_itself(command: Command) -> None:
    text = answers(command("--prompt", "Hello", "--json", "--max-tokens", "30"))[0]["text"]
    stop = text[10:12]
    (cut,) = answers(command("--prompt", "Hello", "--json", "--max-tokens", "30", "--stop", "never", "--stop", stop))
    assert (cut["text"], cut["finish_reason"]) == (text[: text.index(stop)], "stop")


def test_stop_ids_min_tokens_and_ignore_eos_reach_sampling(command: Command) -> None:
    def ids(*arguments: str) -> list[int]:
        return list(answers(command("--prompt", "Hello", "--json", "--max-tokens", "20", *arguments))[0]["token_ids"])

    plain = ids("--ignore-eos")
    assert len(plain) == 20
    assert ids("--ignore-eos", "--stop-token-id", str(plain[4])) == plain[: plain.index(plain[4]) + 1]
    assert len(ids("--ignore-eos", "--stop-token-id", str(plain[0]), "--min-tokens", "6")) >= 6


def test_logprobs_of_each_token(command: Command) -> None:
    (answer,) = answers(command("--prompt", "Hello", "--json", "--max-tokens", "6", "--logprobs", "2"))
    assert [entry["token"] for entry in answer["logprobs"]] == answer["token_ids"]
    assert all(entry["top"][0] == [entry["token"], entry["logprob"]] and len(entry["top"]) == 2 for entry in answer["logprobs"])


def test_on_a_terminal_accepted_draft_tokens_stand_apart(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--prompt", "Hello", "--max-tokens", "40", "--speculation", "draft_model")
    text = command(*arguments)[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    coloured = command(*arguments)[1]
    assert "\x1b[32m" in coloured
    assert coloured.replace("\x1b[32m", "").replace("\x1b[0m", "") == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert command(*arguments)[1] == text


def test_a_recipe_is_built_the_first_time(command: Command, tiny_recipe: Path, home: Path) -> None:
    recipe = ("-c", str(tiny_recipe))
    arguments = ("--prompt", "Hello", "--max-tokens", "9", "--set", "target.max_seq_len=64", "--set", "target.precision=float32")
    code, text, err = command(*arguments, bundle=recipe)
    built, _ = err.splitlines()
    assert (code, built.startswith(f"built {home / 'tiny-'}")) == (0, True)
    code, again, err = command(*arguments, bundle=recipe)
    assert (code, again, len(err.splitlines())) == (0, text, 1)


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
        (["--verification", "blok"], "verification rule 'blok' is unknown. Did you mean 'block'?"),
        (["--batch", "5"], "batch is 5, but the engine was built for 1 to 4"),
        (["--batch", "0"], "batch is 0, but"),
        (["--logprobs", "2"], "--logprobs 2 is shown with --json only"),
        (["--max-tokens", "1024"], "exceed the 1024 that a sequence holds; lower max_tokens to 1"),
        (["--set", "target.precision=int4"], "--set target.precision=int4: a bundle's recipe is what it was built from"),
        (["-c", "smollm2-135m"], "give a recipe with -c or a bundle with --bundle (both was given)"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(command: Command, arguments: list[str], words: str) -> None:
    code, out, err = command("--prompt", "Hello", *arguments)
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
def test_a_prompt_that_cannot_be_answered_is_one_sentence(command: Command, arguments: list[str], stdin: bytes, words: str) -> None:
    code, out, err = command(*arguments, stdin=stdin)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(words)


def test_one_bad_line_and_nothing_is_generated(command: Command, tmp_path: Path) -> None:
    good = {"prompt": "Hello"}
    file = write(tmp_path / "prompts.jsonl", good, {"prompt": "x" * 2000}, good)
    code, out, err = command("--prompts", file, "--json")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {file}:2: the prompt has 2018 tokens")
    Path(file).write_text('{"prompt": "Hello"}\n{"promt": "Hello"}\n')
    code, out, err = command("--prompts", file, "--json")
    assert (code, out) == (2, "")
    assert err == f"error: {file}:2: exactly one of prompt, turns and messages is needed (seen: 'promt')\n"


def test_no_bundle_is_refused_before_stdin_is_read(command: Command) -> None:
    code, out, err = command(bundle=())
    assert (code, out) == (2, "")
    assert "(neither was given)" in err
    code, _, err = command(bundle=("--bundle", "absent"))
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


def test_a_plan_for_a_gpu_that_is_not_here_ends_with_3(command: Command, tiny_bundle: Path, tmp_path: Path) -> None:
    changes = {"backend": "tensorrt-rtx", "flavour": "tensorrt_rtx", "version": "0.0", "compute_capabilities": ("sm50",)}
    folder = resealed(tiny_bundle, tmp_path / "rtx", **changes)
    code, out, err = command("--prompt", "Hello", bundle=("--bundle", str(folder)))
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("error: ")


def test_what_was_not_measured_is_noted_once(command: Command, tiny_bundle: Path, tmp_path: Path) -> None:
    folder = resealed(tiny_bundle, tmp_path / "unprobed", probe=None)
    file = write(tmp_path / "prompts.jsonl", {"prompt": "one"}, {"prompt": "two"})
    code, out, err = command("--prompts", file, "--json", "--max-tokens", "3", bundle=("--bundle", str(folder)))
    assert (code, len(out.splitlines())) == (0, 2)
    assert err == "note: the engine was built with --no-probe: whether its bits are invariant is not known\n"


def test_an_interruption_leaves_whole_lines_and_130(tiny_bundle: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "prompts.jsonl", *({"prompt": f"prompt {n}"} for n in range(3000)))
    command = [sys.executable, "-m", "specbuild", "run", "--bundle", str(tiny_bundle), "--prompts", file, "--max-tokens", "400", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:
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
