"""Each head that does not belong to its target is refused before anything is compiled, in a sentence that says how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import head_support
import numpy as np
import pytest
from head_support import DRAFT_IDS, HIDDEN, VOCABULARY, save_head, save_target
from tiny_checkpoint import save_tiny

from specbuild.builders.build import build
from specbuild.builders.checkpoint import locate
from specbuild.builders.heads import layouts
from specbuild.builders.heads.eagle3 import layer_ids
from specbuild.builders.preparation import dry_plan, prepare
from specbuild.builders.store import Store
from specbuild.errors import CheckpointError, PreflightError, SpecbuildError, UnsupportedError
from specbuild.recipe import HeadRole, Recipe

EAGLE3 = "eagle_aux_hidden_state_layer_ids"


def recipe(folder: Path, role: str, head: tuple[dict[str, Any], head_support.Tensors] | str | None, max_seq_len: int = 64) -> Recipe:
    target = folder / "target"
    if not target.exists():
        save_target(target)
    checkpoint = str(save_head(folder / "head", *head)) if isinstance(head, tuple) else head
    heads = {role: {"checkpoint": checkpoint}}
    document = {"name": "x", "checkpoint": str(target), "target": {"max_seq_len": max_seq_len}, "speculation": {"heads": heads}}
    return Recipe.model_validate(document)


def refusal(folder: Path, asked: Recipe, error: type[SpecbuildError] = PreflightError) -> str:
    """The sentence that refuses ``asked``, for a plan and for a build alike; nothing may have been built, not even a store."""
    with pytest.raises(error) as refused:
        build(asked, store=Store(folder / "home"))
    assert not (folder / "home").exists()
    message = str(refused.value)
    assert "\n" not in message
    return message


def eagle3(**changes: Any) -> tuple[dict[str, Any], head_support.Tensors]:
    return head_support.eagle3(**changes)


def test_the_layouts_that_are_read() -> None:
    roles: tuple[HeadRole, ...] = ("eagle3", "medusa", "mtp")
    known = {role: sorted(layout.name for layout in layouts(role)) for role in roles}
    assert known == {"eagle3": ["EAGLE-3"], "medusa": ["Medusa-1"], "mtp": ["DeepSeek-V3", "MiMo", "Qwen3-Next"]}


def test_another_hidden_size(tmp_path: Path) -> None:
    message = refusal(tmp_path, recipe(tmp_path, "eagle3", eagle3(hidden_size=128, head_dim=32)))
    assert "hidden_size is 64 in target" in message
    assert "and 128 in the eagle3 head" in message
    assert "set speculation.heads.eagle3.checkpoint to a head trained for this target, or remove speculation.heads.eagle3" in message


def test_another_vocabulary(tmp_path: Path) -> None:
    message = refusal(tmp_path, recipe(tmp_path, "mtp", head_support.mtp("deepseek", vocab_size=300)))
    assert f"vocab_size is {VOCABULARY} in target" in message
    assert "and 300 in the mtp head" in message


def test_a_draft_vocabulary_that_nobody_names(tmp_path: Path) -> None:
    config, tensors = eagle3()
    del tensors["d2t"]
    message = refusal(tmp_path, recipe(tmp_path, "eagle3", (config, tensors)))
    assert f"drafts over 65 tokens, target {tmp_path / 'target'} has {VOCABULARY}, and no tensor d2t says which they are" in message


@pytest.mark.parametrize(
    ("key", "seen"),
    [
        ({"eagle_config": {EAGLE3: [0, 1, 9]}}, "[1, 2, 10]"),
        ({"eagle_config": {EAGLE3: [2, 1, 0]}}, "[3, 2, 1]"),
        ({"eagle_config": None, EAGLE3: [1, 1, 2]}, "[1, 1, 2]"),
        ({"eagle_config": {EAGLE3: [-3, 0, 1]}}, "[-2, 1, 2]"),
        ({"eagle_config": None}, "[2, 2, 1]"),
    ],
)
def test_taps_that_the_target_does_not_have(key: dict[str, Any], seen: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, recipe(tmp_path, "eagle3", eagle3(**key)))
    assert f"taps the hidden states {seen} of a target that has those from 0 to 4; name 3 of them, ascending" in message


@pytest.mark.parametrize(
    ("key", "taps"),
    [
        ({"eagle_config": {EAGLE3: layer_ids((0, 2, 4))}}, (0, 2, 4)),
        ({"eagle_config": None, EAGLE3: [0, 2, 4]}, (0, 2, 4)),
        ({"eagle_config": {EAGLE3: [0, 1, 2]}}, (1, 2, 3)),
    ],
)
def test_published_keys_of_taps(key: dict[str, Any], taps: tuple[int, ...], tmp_path: Path) -> None:
    """SpecForge counts outputs of layers, vLLM what enters them."""
    assert dry_plan(recipe(tmp_path, "eagle3", eagle3(**key))).taps == taps


def test_taps_without_a_key_are_those_of_the_paper(tmp_path: Path) -> None:
    save_tiny(tmp_path / "target", num_hidden_layers=10)
    assert dry_plan(recipe(tmp_path, "eagle3", eagle3(eagle_config=None))).taps == (2, 5, 7)


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        (
            DRAFT_IDS[:-1] - np.arange(64),
            "has a d2t of 64 entries for a draft vocabulary of 65; set draft_vocab_size in its config.json to 64",
        ),
        (DRAFT_IDS, "leads to the token id 320, target"),
        (DRAFT_IDS - np.arange(65) - 4, "leads to the token id -1, target"),
        (np.zeros(65, np.int64) - np.arange(65) + 5, "leads to the token id 5 more than once"),
    ],
)
def test_a_map_that_leads_elsewhere(offsets: Any, sentence: str, tmp_path: Path) -> None:
    config, tensors = eagle3()
    message = refusal(tmp_path, recipe(tmp_path, "eagle3", (config, tensors | {"d2t": offsets})))
    assert sentence in message


def test_more_positions_than_the_head_was_made_for(tmp_path: Path) -> None:
    message = refusal(tmp_path, recipe(tmp_path, "eagle3", eagle3(max_position_embeddings=128), max_seq_len=200))
    assert "target.max_seq_len 200 is above the 128 positions of the eagle3 head" in message
    assert "set target.max_seq_len to 128 or less, or choose a head made for longer sequences" in message
    assert dry_plan(recipe(tmp_path / "medusa", "medusa", head_support.medusa(), max_seq_len=200)).taps == (4,)


@pytest.mark.parametrize("role", ["mtp", "eagle3", "medusa"])
def test_a_checkpoint_without_the_head(role: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, recipe(tmp_path, role, None), CheckpointError)
    assert f"{tmp_path / 'target'}: no {role} head is in it (layouts that are read: " in message
    assert f"set speculation.heads.{role}.checkpoint to a head trained for this target, or remove speculation.heads.{role}" in message


@pytest.mark.parametrize("reference", ["configs:none/such", "/no/such/folder"])
def test_a_head_that_is_not_there(reference: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, recipe(tmp_path, "eagle3", reference), CheckpointError)
    assert f"{reference}: no such folder; name the folder of a draft head, package:NAME, hf:ORG/NAME or configs:NAME" in message


def test_tensors_that_would_be_left_out_or_are_missing(tmp_path: Path) -> None:
    config, tensors = eagle3()
    extra = tensors | {"midlayer.self_attn.q_proj.bias": np.zeros(HIDDEN, np.float32)}
    message = refusal(tmp_path / "a", recipe(tmp_path / "a", "eagle3", (config, extra)), UnsupportedError)
    assert "tensor midlayer.self_attn.q_proj.bias has no place in a head of the layout EAGLE-3 (1 such); check the bias" in message
    del tensors["midlayer.hidden_norm.weight"]
    message = refusal(tmp_path / "b", recipe(tmp_path / "b", "eagle3", (config, tensors)), CheckpointError)
    assert "tensor midlayer.hidden_norm.weight is missing (expected shape [64])" in message
    wide = head_support.mtp("mimo")
    wide[1]["model.mtp_layers.0.input_proj.weight"] = np.zeros((HIDDEN, HIDDEN), np.float32)
    message = refusal(tmp_path / "c", recipe(tmp_path / "c", "mtp", wide), CheckpointError)
    assert "input_proj.weight has shape [64, 64], its config implies [64, 128]; config and weights are not of one head" in message


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (lambda: eagle3(norm_before_residual=True), "norm_before_residual True is not supported"),
        (lambda: eagle3(norm_before_fc=True), "norm_before_fc True is not supported"),
        (lambda: head_support.mtp("qwen3_next", partial_rotary_factor=0.25), "partial_rotary_factor 0.25 is not supported"),
        (lambda: head_support.mtp("qwen3_next", num_experts=512), "num_experts 512 is not supported"),
        (lambda: head_support.mtp("deepseek", model_type="deepseek_v3"), "model family 'deepseek_v3' is not supported"),
    ],
)
def test_mathematics_that_is_not_built(head: Any, sentence: str, tmp_path: Path) -> None:
    role = "eagle3" if sentence.startswith("norm") else "mtp"
    assert sentence in refusal(tmp_path, recipe(tmp_path, role, head()), UnsupportedError)


def test_pickled_heads_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    folder = save_head(tmp_path / "pickled", *head_support.medusa())
    (folder / "model.safetensors").rename(folder / "medusa_lm_head.pt")
    message = refusal(tmp_path, recipe(tmp_path, "medusa", str(folder)), UnsupportedError)
    assert "medusa_lm_head.pt, whose pickle format can run code when read; convert it to safetensors" in message
    assert 'save_file(torch.load("medusa_lm_head.pt", weights_only=True), "model.safetensors")' in message


def test_an_mtp_module_with_experts_is_refused(tmp_path: Path) -> None:
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    folder = save_head(tmp_path / "experts", *head_support.mtp("deepseek", **experts))
    message = refusal(tmp_path, recipe(tmp_path, "mtp", str(folder)), UnsupportedError)
    assert "an MTP module of family 'mixtral' has experts, which heads are not built with" in message


def test_what_comes_with_specbuild_has_a_reference() -> None:
    assert locate("configs:smollm2-135m.yaml").is_file()


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    """An int8 engine would hide them."""
    config, tensors = eagle3()
    tensors["midlayer.mlp.up_proj.weight"][3, 5] = np.nan
    prepared = prepare(recipe(tmp_path, "eagle3", (config, tensors)))
    with pytest.raises(CheckpointError, match=r"tensor midlayer.mlp.up_proj.weight has values that are not finite"):
        prepared.weights["eagle3"].read("layers.0.up")
