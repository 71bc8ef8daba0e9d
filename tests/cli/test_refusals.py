"""What is refused end to end: one sentence on stderr, the exit code, nothing on stdout and nothing half-written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import save_tiny

from specbuild.bundle import MANIFEST, Bundle
from specbuild.cli.main import run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def build(capsys: pytest.CaptureFixture[str], home: Path) -> Command:
    """``specbuild engine build`` of a tiny checkpoint with settings: exit code, stdout, the last line of stderr."""

    def call(checkpoint: Path, *settings: str) -> tuple[int, str, str]:
        recipe = checkpoint.parent / "recipe.yaml"
        recipe.write_text(f"name: tiny\ncheckpoint: {checkpoint}\ntarget: {{max_seq_len: 64}}\nspeculation: {{draft: {{}}}}\n")
        code = run(["engine", "build", "-c", str(recipe), "--no-probe", *(part for text in settings for part in ("--set", text))])
        out, err = capsys.readouterr()
        assert [line for line in err.splitlines() if line.startswith("error: ")] == err.splitlines()[-1:], "one sentence, and the last"
        assert not [path for path in home.glob("*") if path.name != ".locks"], "nothing is left"
        return code, out, err.splitlines()[-1]

    return call


def edit(folder: Path, name: str, **changes: object) -> None:
    """Change keys of a JSON file of a checkpoint."""
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_tokenizer_of_the_same_size_and_other_content(build: Command, tiny_checkpoint: Path, tmp_path: Path) -> None:
    draft = save_tiny(tmp_path / "draft")
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["+"], vocabulary[","] = vocabulary[","], vocabulary["+"]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    code, out, sentence = build(tiny_checkpoint, f"speculation.draft.checkpoint={draft}")
    assert (code, out) == (2, "")
    assert f"target {tiny_checkpoint} and draft {draft} differ: id 10 is '+' in the target and ',' in the draft; set" in sentence


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(build: Command, tiny_checkpoint: Path, value: float) -> None:
    file = tiny_checkpoint / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, file)
    code, out, sentence = build(tiny_checkpoint)
    assert (code, out) == (1, "")
    assert "tensor model.layers.1.mlp.up_proj.weight has values that are not finite; download" in sentence


def test_a_draft_that_lacks_a_tensor_is_found_before_the_target_is_compiled(
    build: Command, tiny_checkpoint: Path, tmp_path: Path, home: Path
) -> None:
    draft = save_tiny(tmp_path / "draft")
    tensors = load_file(draft / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, draft / "model.safetensors")
    code, out, sentence = build(tiny_checkpoint, f"speculation.draft.checkpoint={draft}")
    assert (code, out) == (1, "")
    assert "tensor model.norm.weight is missing (expected shape [64]); the checkpoint is incomplete, corrupt or" in sentence
    assert not home.exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (257, "eos_token_id 257 is past the 257 ids that its tokenizer knows; correct generation_config.json"),
        ("end", "eos_token_id is 'end', but must be a token id; correct generation_config.json"),
        ([256, 1.5], "eos_token_id is [256, 1.5], but"),
    ],
)
def test_an_end_that_is_no_token(build: Command, tiny_checkpoint: Path, value: object, words: str) -> None:
    edit(tiny_checkpoint, "generation_config.json", eos_token_id=value)
    code, out, sentence = build(tiny_checkpoint)
    assert (code, out) == (1, "")
    assert words in sentence


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", b'{"model": {"vocab": {"a": 0}}}', "its tokenizer.json cannot be loaded"),
        ("tokenizer.json", b"[" * 100_000, "tokenizer.json: not readable as JSON"),
        ("config.json", b"\xff", "config.json: not readable as JSON"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: cannot be read"),
    ],
)
def test_a_file_that_is_something_else(build: Command, tiny_checkpoint: Path, name: str, content: bytes, words: str) -> None:
    (tiny_checkpoint / name).write_bytes(content)
    code, out, sentence = build(tiny_checkpoint)
    assert (code, out) == (1, "")
    assert words in sentence


def test_what_the_system_refuses_is_one_sentence(build: Command, tiny_checkpoint: Path) -> None:
    name = "x" * 300
    assert build(tiny_checkpoint, f"checkpoint={name}")[::2] == (
        1,
        f"error: {name}: File name too long; name another path, or change who may use this one",
    )
    (tiny_checkpoint / "model.safetensors").unlink()
    (tiny_checkpoint / "model.safetensors").mkdir()
    assert build(tiny_checkpoint)[0] == 1


def test_a_message_of_several_lines_is_said_in_one(build: Command, tiny_checkpoint: Path) -> None:
    code, _, sentence = build(tiny_checkpoint, 'checkpoint="two\\nlines"')
    assert code == 1
    assert sentence.startswith("error: two lines: no such file or folder")


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A bundle that may be harmed."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))


def test_an_engine_built_for_another_version(run_tiny: Command, copy: Path) -> None:
    manifest = Bundle.open(copy).manifest
    engines = tuple(engine.model_copy(update={"version": "1.10.0"}) for engine in manifest.engines)
    (copy / MANIFEST).write_text(manifest.model_copy(update={"engines": engines}).sealed().model_dump_json())
    sentence = (
        f"error: the target engine was built for onnxruntime 1.10.0, installed is {onnxruntime.__version__}; "
        "install that version, or build it anew with `specbuild engine build --force`\n"
    )
    assert run_tiny("--prompt", "Hello", bundle=("--bundle", str(copy))) == (3, "", sentence)


def test_an_edited_manifest(run_tiny: Command, copy: Path) -> None:
    edit(copy, MANIFEST, digest="0" * 64)
    code, out, err = run_tiny("--prompt", "Hello", bundle=("--bundle", str(copy)))
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith(f"error: {copy / MANIFEST}: edited after the build (seal ")
    assert err.endswith("build it anew with `specbuild engine build --force`\n")


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"schema_version": 1, "x": "\\ud800"}', b"\xff", b""])
def test_a_manifest_that_is_none(run_tiny: Command, copy: Path, content: bytes) -> None:
    (copy / MANIFEST).write_bytes(content)
    code, out, err = run_tiny("--prompt", "Hello", bundle=("--bundle", str(copy)))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "manifest.json: not readable as JSON" in err


def test_another_tokenizer(run_tiny: Command, copy: Path) -> None:
    file = copy / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    code, out, err = run_tiny("--prompt", "Hello", bundle=("--bundle", str(copy)))
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith(f"error: {file}: sha256 is ")


@pytest.mark.parametrize("keep", [0, 1000])
def test_a_truncated_engine(run_tiny: Command, copy: Path, keep: int) -> None:
    file = copy / "engines" / "target" / "model.onnx.data"
    file.write_bytes(file.read_bytes()[:keep])
    code, out, err = run_tiny("--prompt", "Hello", bundle=("--bundle", str(copy)))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "does not load it" in err


def test_more_threads_than_cores(run_tiny: Command) -> None:
    code, out, err = run_tiny("--prompt", "Hello", "--threads", "100000")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: threads is 100000, but this machine has ")


def test_a_prompt_file_with_a_byte_order_mark_is_read(run_tiny: Command, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "Hello"}\r\n')
    code, out, _ = run_tiny("--prompts", str(file), "--json", "--max-tokens", "2")
    assert (code, json.loads(out)["stats"]["emitted_tokens"]) == (0, 2)
