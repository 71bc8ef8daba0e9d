"""A plan says what a build will do, and its digest names what the build depends on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from specbuild import config
from specbuild.builders.build import build
from specbuild.builders.preparation import dry_plan, prepare, sources
from specbuild.builders.store import Store, folder_bytes
from specbuild.recipe import Recipe, draft_role


def recipe(checkpoint: Path | str, *settings: str) -> Recipe:
    document = {
        "name": "tiny",
        "checkpoint": str(checkpoint),
        "target": {"max_seq_len": 64},
        "speculation": {"draft": {"precision": "int4"}},
    }
    assignments = [config.from_option(text) for text in settings]
    return config.from_sources(document, origin="test", environ={}, assignments=assignments).recipe


@pytest.mark.parametrize(
    ("name", "role", "parameters", "kv_bytes_per_token"),
    [
        # Published parameter counts: 8,030,261,248; 1,235,814,400; 8,190,735,360; 596,049,920.
        ("llama-3.1-8b-h100", 0, 8.030e9, 32 * 2 * 8 * 128 * 2),
        ("llama-3.1-8b-h100", 1, 1.2358e9, 16 * 2 * 8 * 64 * 2),
        ("qwen3-8b-h100", 0, 8.1907e9, 36 * 2 * 8 * 128 * 2),
        ("qwen3-8b-h100", 1, 0.59605e9, 28 * 2 * 8 * 128 * 2),
    ],
)
def test_plans_without_weights_have_the_published_sizes(name: str, role: int, parameters: float, kv_bytes_per_token: int) -> None:
    plan = dry_plan(config.load(name, environ={}).recipe)
    step = plan.steps[role]
    assert step.parameters == pytest.approx(parameters, rel=2e-4)
    assert step.engine_bytes == pytest.approx(2 * parameters, rel=2e-3)
    assert step.kv_bytes_per_token == kv_bytes_per_token
    assert step.kv_bytes == kv_bytes_per_token * 16 * step.shape.capacity
    assert (plan.digest, plan.folder) == (None, None)


MIXTRAL_8X7B: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
}
QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 40960,
}


@pytest.mark.parametrize(
    ("described", "parameters", "touched"),
    [
        # Published parameter counts: 46,702,792,704; 30,532,122,624.
        (MIXTRAL_8X7B, 46.7028e9, {"1": 2.0, "2": 3.5, "8": 7.2}),
        (QWEN3_30B_A3B, 30.5321e9, {"1": 8.0, "2": 15.5, "8": 51.62}),
    ],
)
def test_plans_of_mixtures_of_experts_count_every_expert(described: dict[str, Any], parameters: float, touched: dict[str, float]) -> None:
    target = {"precision": "int4", "config": described}
    plan = dry_plan(Recipe.from_mapping({"name": "moe", "checkpoint": "none", "target": target}, origin="test"))
    step = plan.steps[0]
    assert step.parameters == pytest.approx(parameters, rel=2e-5)
    experts = described.get("num_experts") or described["num_local_experts"]
    floats = described["hidden_size"] * (described["vocab_size"] + described["num_hidden_layers"] * experts)
    # Half a byte and a share of a float32 scale for each weight but those of the embedding and the routers.
    assert step.engine_bytes == pytest.approx((parameters - floats) * (0.5 + 4 / 32) + 4 * floats, rel=1e-3)
    assert plan.describe()["steps"][0]["experts"]["touched_by_tokens"] == touched


@pytest.mark.parametrize("name", [name for name in sorted(config.shipped()) if name.startswith("smollm2")])
def test_plans_of_the_smollm2_recipes(name: str) -> None:
    asked = config.load(name, environ={}).recipe
    plan = dry_plan(asked)
    assert [step.role for step in plan.steps] == [
        "target",
        "draft",
        *map(draft_role, asked.speculation.drafts),
        *asked.speculation.heads.present(),
    ]
    assert plan.steps[0].parameters == pytest.approx(134_515_008, rel=1e-3)


def test_sizes_foretell_those_of_real_engines(tmp_path: Path, tiny_checkpoint: Path) -> None:
    for precision in ("float32", "int8", "int4"):
        asked = recipe(tiny_checkpoint, f"target.precision={precision}", "speculation.draft=null")
        plan = dry_plan(asked)
        bundle = build(asked, store=Store(tmp_path / "store")).bundle
        # A graph of a hundred nodes weighs as much as these tiny weights; on a real model it is nothing.
        data = folder_bytes(bundle.path / "engines") - (bundle.path / "engines/target/model.onnx").stat().st_size
        assert data == pytest.approx(plan.engine_bytes, rel=0.05)


def digest(asked: Recipe) -> str:
    found = prepare(asked).plan.digest
    assert found is not None
    return found


@pytest.mark.parametrize(
    "setting",
    [
        "name=other",
        "speculation.method=off",
        "speculation.draft_len=2",
        "speculation.tree_budget=6",
        "speculation.verification=block",
        "speculation.lossy=typical",
        "speculation.ngram_max=5",
        "speculation.suffix_history=0",
        "speculation.cascade=[suffix, draft]",
        "speculation.hybrid_retrieval=suffix",
        "speculation.hybrid_min_match=3",
        "speculation.hybrid_model=cascade",
        "speculation.merged=[suffix, draft]",
        "tensorrt.workspace_mib=64",
    ],
)
def test_defaults_of_generation_do_not_change_the_digest(tiny_checkpoint: Path, setting: str) -> None:
    assert digest(recipe(tiny_checkpoint, setting)) == digest(recipe(tiny_checkpoint))


@pytest.mark.parametrize(
    "setting",
    [
        "target.precision=float32",
        "target.max_seq_len=128",
        "target.max_batch_size=2",
        "speculation.max_draft_len=5",
        "speculation.draft.precision=int8",
        "speculation.draft=null",
        "speculation.drafts.middle.precision=int8",
    ],
)
def test_what_an_engine_depends_on_changes_the_digest(tiny_checkpoint: Path, setting: str) -> None:
    assert digest(recipe(tiny_checkpoint, setting)) != digest(recipe(tiny_checkpoint))


def test_a_named_draft_is_known_by_precision_and_content(tmp_path: Path, tiny_checkpoint: Path) -> None:
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    digests = [
        digest(recipe(tiny_checkpoint, f"speculation.drafts.middle={{precision: {precision}, checkpoint: {source}}}"))
        for precision, source in (("int8", tiny_checkpoint), ("int8", copy), ("int4", copy))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_knows_a_checkpoint_by_content(tmp_path: Path, tiny_checkpoint: Path) -> None:
    before = digest(recipe(tiny_checkpoint))
    moved = tiny_checkpoint.rename(tmp_path / "moved")
    assert digest(recipe(moved)) == before
    weights = moved / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert digest(recipe(moved)) != before


def test_the_digest_covers_compiler_and_source(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    before = digest(recipe(tiny_checkpoint))
    with monkeypatch.context() as patch:
        patch.setattr("specbuild.builders.preparation.source_digest", lambda: "other code")
        assert digest(recipe(tiny_checkpoint)) != before
    monkeypatch.setattr("onnxruntime.__version__", "1.99.0")
    assert digest(recipe(tiny_checkpoint)) != before


def test_a_draft_without_a_checkpoint_is_the_targets_own() -> None:
    described: dict[str, Any] = {"hidden_size": 3}
    own = Recipe.model_validate({"name": "a", "checkpoint": "t", "target": {"config": described}, "speculation": {"draft": {}}})
    assert sources(own) == {"target": ("t", described), "draft": ("t", described)}
    other = Recipe.model_validate({"name": "a", "checkpoint": "t", "speculation": {"draft": {"checkpoint": "d"}}})
    assert sources(other)["draft"] == ("d", None)
    more = Recipe.model_validate({"name": "a", "checkpoint": "t", "speculation": {"drafts": {"b": {}, "c": {"checkpoint": "d"}}}})
    assert sources(more) == {"target": ("t", None), "draft.b": ("t", None), "draft.c": ("d", None)}
