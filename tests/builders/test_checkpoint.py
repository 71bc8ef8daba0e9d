"""Hugging Face folders: tensors, tokenizer files, digests, and what is refused."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from specbuild.builders.checkpoint import open_checkpoint
from specbuild.errors import CheckpointError, SpecbuildError, UnsupportedError

FIRST = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
SECOND = np.linspace(-2, 2, 8, dtype=np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two tensors in one file."""
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 5, "bos_token_id": 1}))
    (place / "tokenizer.json").write_text('{"version": "1.0"}')
    save_file({"a": FIRST, "b": SECOND}, place / "model.safetensors")
    return place


def _shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    save_file({"a": FIRST}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": SECOND}, folder / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_tensors_are_read_by_name(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.names() == ("a", "b")
    assert checkpoint.shape("a") == (3, 4)
    np.testing.assert_array_equal(checkpoint.read("a"), FIRST)
    np.testing.assert_array_equal(checkpoint.read("b"), SECOND)


def test_the_caller_owns_what_is_read(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    checkpoint.read("a")[...] = 0
    np.testing.assert_array_equal(checkpoint.read("a"), FIRST)


def test_shards_read_as_one(folder: Path) -> None:
    _shard(folder)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.names() == ("a", "b")
    np.testing.assert_array_equal(checkpoint.read("b"), SECOND)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_every_float_becomes_float32(folder: Path, dtype: type) -> None:
    save_file({"a": FIRST.astype(dtype)}, folder / "model.safetensors")
    tensor = open_checkpoint(str(folder)).read("a")
    assert tensor.dtype == np.float32
    np.testing.assert_array_equal(tensor, FIRST.astype(dtype).astype(np.float32))


def test_integers_are_refused_by_name(folder: Path) -> None:
    save_file({"a": np.ones(3, np.int8)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedError, match="tensor a has type I8; supported: F32, F16, BF16"):
        open_checkpoint(str(folder))


def test_an_unknown_tensor_is_missing(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="tensor c is missing"):
        open_checkpoint(str(folder)).read("c")


@pytest.mark.parametrize("keep", [0, 5, 30, -1])
def test_a_truncated_file_is_found_at_open(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: truncated or corrupt \(.*bytes on disk.*\); download it again"
    ) as caught:
        open_checkpoint(str(folder))
    if keep == -1:
        assert f"{len(content) - 1} bytes on disk, its header describes {len(content)}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_header_is_corrupt(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8] = ord("[")
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        open_checkpoint(str(folder))


def test_a_missing_shard_is_named(folder: Path) -> None:
    _shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors: missing"):
        open_checkpoint(str(folder))


def test_an_index_that_disagrees_is_refused(folder: Path) -> None:
    _shard(folder)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "z": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"says that model-00002-of-00002\.safetensors holds z, which it does not"):
        open_checkpoint(str(folder))


def _only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _two_files(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    shutil.copy(folder / "one.safetensors", folder / "two.safetensors")


def _sentencepiece_only(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _list_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("harm", "error", "sentence"),
    [
        (_only_pickle, UnsupportedError, "only pytorch_model.bin.*convert it to safetensors"),
        (_no_weights, CheckpointError, "no safetensors file"),
        (_two_files, CheckpointError, "2 safetensors files and no model.safetensors.index.json"),
        (_sentencepiece_only, UnsupportedError, "only tokenizer.model; convert it"),
        (_no_tokenizer, CheckpointError, "no tokenizer.json"),
        (_broken_config, CheckpointError, "config.json: not readable as JSON"),
        (_list_config, CheckpointError, "config.json: holds a JSON list"),
        (_no_config, CheckpointError, "no config.json here; name a Hugging Face folder or a .gguf file"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, harm: Callable[[Path], None], error: type[SpecbuildError], sentence: str) -> None:
    harm(folder)
    with pytest.raises(error, match=sentence):
        open_checkpoint(str(folder))


def test_special_tokens_come_from_the_generation_config_first(folder: Path) -> None:
    assert open_checkpoint(str(folder)).eos_token_ids == (5,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8], "pad_token_id": 0}')
    checkpoint = open_checkpoint(str(folder))
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id, checkpoint.pad_token_id) == ((7, 8), 1, 0)


def test_chat_template_in_each_of_its_places(folder: Path) -> None:
    assert open_checkpoint(str(folder)).tokenizer.chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert open_checkpoint(str(folder)).tokenizer.chat_template == "D"
    (folder / "tokenizer_config.json").write_text('{"chat_template": "C"}')
    assert open_checkpoint(str(folder)).tokenizer.chat_template == "C"
    (folder / "chat_template.jinja").write_text("J")
    assert open_checkpoint(str(folder)).tokenizer.chat_template == "J"


def test_digest_knows_content_and_not_place(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    assert open_checkpoint(str(copy)).digest() == open_checkpoint(str(folder)).digest()


def test_digest_does_not_depend_on_the_order_of_shards(folder: Path, tmp_path: Path) -> None:
    _shard(folder)
    copy = tmp_path / "renamed"
    shutil.copytree(folder, copy)
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    (copy / one).rename(copy / "x")
    (copy / two).rename(copy / one)
    (copy / "x").rename(copy / two)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": two, "b": one}}))
    assert open_checkpoint(str(copy)).digest() == open_checkpoint(str(folder)).digest()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_digest_changes_with_one_byte(folder: Path, name: str) -> None:
    before = open_checkpoint(str(folder)).digest()
    content = bytearray((folder / name).read_bytes())
    place = content.rindex(b"1") if name.endswith(".json") else len(content) - 1
    content[place] ^= 1
    (folder / name).write_bytes(content)
    assert open_checkpoint(str(folder)).digest() != before


@pytest.mark.parametrize(("dtype", "copies"), [(np.float32, 1.0), (np.float16, 1.5)])
def test_reading_holds_one_tensor(folder: Path, dtype: type, copies: float) -> None:
    size = 2**20
    save_file({name: np.ones(size, dtype) for name in "abcd"}, folder / "model.safetensors")
    checkpoint = open_checkpoint(str(folder))
    tracemalloc.start()
    for name in checkpoint.names():
        checkpoint.read(name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * copies * size * 4
