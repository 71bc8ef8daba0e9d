"""Each pair that cannot work is refused before anything is compiled, in a sentence that says how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import CONFIG, save_tiny

from specbuild import config
from specbuild.builders.build import build
from specbuild.builders.facts import TokenizerFacts, tokenizer_facts
from specbuild.builders.preflight import first_difference
from specbuild.builders.preparation import dry_plan
from specbuild.builders.store import Store
from specbuild.errors import CheckpointError, EnvironmentLacksError, PreflightError, SpecbuildError, UnsupportedError
from specbuild.recipe import Recipe


def pair(target: Path, draft: Path | None = None, *settings: str) -> Recipe:
    speculation = {"draft": {"checkpoint": str(draft)}} if draft else {}
    document = {"name": "pair", "checkpoint": str(target), "target": {"max_seq_len": 64}, "speculation": speculation}
    assignments = [config.from_option(text) for text in settings]
    return config.from_sources(document, origin="test", environ={}, assignments=assignments).recipe


def refusal(tmp_path: Path, recipe: Recipe, error: type[SpecbuildError] = PreflightError) -> str:
    """The sentence that refuses ``recipe``; nothing may have been built, not even a store."""
    home = tmp_path / "home"
    with pytest.raises(error) as refused:
        build(recipe, store=Store(home))
    assert not home.exists()
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_pair_of_one_tokenizer_passes(tmp_path: Path, tiny_checkpoint: Path) -> None:
    draft = save_tiny(tmp_path / "draft", seed=1, num_hidden_layers=1)
    assert [step.parameters for step in dry_plan(pair(tiny_checkpoint, draft)).steps] == [2 * 30_720 + 264 * 64, 30_720 + 264 * 64]


def test_vocabularies_that_differ_by_padding(tmp_path: Path, tiny_checkpoint: Path) -> None:
    draft = save_tiny(tmp_path / "draft", vocab_size=288)
    message = refusal(tmp_path, pair(tiny_checkpoint, draft))
    assert f"vocab_size is 264 in target {tiny_checkpoint} and 288 in draft {draft}" in message
    assert "the same in both, knows 257 ids; the rest is padding" in message
    assert "model.resize_token_embeddings(264)" in message


def test_vocabularies_that_differ_by_content(tmp_path: Path, tiny_checkpoint: Path) -> None:
    draft = save_tiny(tmp_path / "draft", tokens=("<|tool|>",))
    message = refusal(tmp_path, pair(tiny_checkpoint, draft))
    assert "id 257 is absent in the target and '<|tool|>' in the draft" in message
    assert "set speculation.draft.checkpoint to a model of the target's own family" in message
    assert message.endswith("or set speculation.draft.vocabulary to own, and drafts are translated by way of their text")
    plan = dry_plan(pair(tiny_checkpoint, draft, "speculation.draft.vocabulary=own"))
    assert [step.role for step in plan.steps] == ["target", "draft"]


def test_a_vocabulary_of_its_own_that_is_the_targets(tmp_path: Path, tiny_checkpoint: Path) -> None:
    draft = save_tiny(tmp_path / "draft", seed=1)
    message = refusal(tmp_path, pair(tiny_checkpoint, draft, "speculation.draft.vocabulary=own"))
    assert message == (
        f"speculation.draft.vocabulary is 'own', but target {tiny_checkpoint} and draft {draft} have one tokenizer; set it to same"
    )


def test_a_draft_without_a_tokenizer(tmp_path: Path, tiny_checkpoint: Path) -> None:
    draft = save_tiny(tmp_path / "draft", tokens=("<|tool|>",))
    (draft / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal(tmp_path, pair(tiny_checkpoint, draft, "speculation.draft.vocabulary=own"), CheckpointError)


def test_a_named_draft_is_checked_like_the_first(tmp_path: Path, tiny_checkpoint: Path) -> None:
    draft = save_tiny(tmp_path / "draft", vocab_size=288)
    message = refusal(tmp_path, pair(tiny_checkpoint, None, f"speculation.drafts.middle.checkpoint={draft}"))
    assert "set speculation.drafts.middle.checkpoint to the saved folder" in message
    asked = pair(tiny_checkpoint, None, "speculation.drafts.middle.precision=bfloat16")
    assert "speculation.drafts.middle.precision: backend 'onnxruntime' does not build 'bfloat16'" in refusal(
        tmp_path, asked, UnsupportedError
    )


def test_tokenizers_with_other_tokens_at_an_id(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", tokens=("<a>", "<b>"))
    draft = save_tiny(tmp_path / "draft", tokens=("<b>", "<a>"))
    assert "id 257 is '<a>' in the target and '<b>' in the draft" in refusal(tmp_path, pair(target, draft))


def test_the_first_difference_of_tokenizers() -> None:
    ours = TokenizerFacts({0: "a", 1: "b", 2: "ab"}, ("a b",))
    assert first_difference(ours, ours) is None
    assert first_difference(ours, TokenizerFacts(ours.tokens, ())) == "merge 0 is 'a b' in the target and absent in the draft"
    assert first_difference(ours, TokenizerFacts({0: "a", 1: "c", 2: "x"}, ours.merges)) == "id 1 is 'b' in the target and 'c' in the draft"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (b'{"model": {"vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}', TokenizerFacts({0: "a", 1: "b"}, ("a b",))),
        (b'{"model": {"vocab": {"a": 0}, "merges": [["a", "b"]]}, "added_tokens": [{"id": 1, "content": "<s>"}]}', None),
        (b'{"model": {"vocab": [["a", -1.0], ["<s>", 0.0]]}}', TokenizerFacts({0: "a", 1: "<s>"}, ())),
    ],
)
def test_tokenizers_of_every_form_are_read(text: bytes, facts: TokenizerFacts | None) -> None:
    assert tokenizer_facts(text, origin="x") == (facts or TokenizerFacts({0: "a", 1: "<s>"}, ("a b",)))


@pytest.mark.parametrize("text", [b"{", b"{}", b'{"model": {"vocab": {}}}', b'{"model": {"vocab": [1]}}'])
def test_a_tokenizer_that_cannot_be_read_is_the_checkpoints_fault(text: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^model: its tokenizer\.json"):
        tokenizer_facts(text, origin="model")


def test_a_draft_with_fewer_positions_than_the_target_needs(tmp_path: Path, tiny_checkpoint: Path) -> None:
    draft = save_tiny(tmp_path / "draft", max_position_embeddings=32)
    message = refusal(tmp_path, pair(tiny_checkpoint, draft))
    assert f"target.max_seq_len 64 is above the 32 positions of the draft {draft}" in message
    assert "set target.max_seq_len to 32 or less, or choose a draft checkpoint made for longer sequences" in message


def test_sequences_longer_than_the_target_was_made_for(tmp_path: Path, tiny_checkpoint: Path) -> None:
    message = refusal(tmp_path, pair(tiny_checkpoint, None, "target.max_seq_len=512"))
    assert "target.max_seq_len 512 is above the 256 positions of the target" in message
    assert message.endswith("set target.max_seq_len to 256 or less")


def test_a_tokenizer_larger_than_the_embedding(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", tokens=tuple(f"<{index}>" for index in range(20)))
    assert "knows 277 ids, its embedding has 264 rows" in refusal(tmp_path, pair(target))


def test_more_draft_tokens_than_a_sequence_holds(tmp_path: Path, tiny_checkpoint: Path) -> None:
    message = refusal(tmp_path, pair(tiny_checkpoint, None, "target.max_seq_len=16", "speculation.max_draft_len=15"))
    assert "set speculation.max_draft_len to 14 or less, or target.max_seq_len to 17 or more" in message


def test_a_config_that_is_not_the_checkpoints(tmp_path: Path, tiny_checkpoint: Path) -> None:
    message = refusal(tmp_path, pair(tiny_checkpoint).model_copy(update={"target": described(CONFIG | {"hidden_size": 128})}))
    assert message.startswith(f"target.config.hidden_size: the recipe says 128, {tiny_checkpoint} has 64; correct the recipe")


def test_a_config_that_only_adds_up_to_another_model(tmp_path: Path) -> None:
    # head_dim is not written in the checkpoint (64 / 4 = 16): no key differs, the decoder does.
    target = save_tiny(tmp_path / "target")
    (target / "config.json").write_text((target / "config.json").read_text().replace('"head_dim": 16, ', ""))
    wrong = pair(target).model_copy(update={"target": described(CONFIG | {"head_dim": 32})})
    assert refusal(tmp_path, wrong).startswith(f"target.config: its head_dim is not that of {target} (32 against 16)")
    right = pair(target).model_copy(update={"target": described(CONFIG)})
    assert build(right, store=Store(tmp_path / "store")).built


def described(keys: dict[str, Any]) -> Any:
    return Recipe.model_validate({"name": "x", "checkpoint": "x", "target": {"max_seq_len": 64, "config": keys}}).target


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("harm", "error", "sentence"),
    [
        (lambda folder: truncate(folder / "model.safetensors"), CheckpointError, "model.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), CheckpointError, "not readable as JSON"),
    ],
)
def test_a_corrupt_checkpoint(
    tmp_path: Path, tiny_checkpoint: Path, harm: Callable[[Path], None], error: type[SpecbuildError], sentence: str
) -> None:
    harm(tiny_checkpoint)
    assert sentence in refusal(tmp_path, pair(tiny_checkpoint), error)


def test_an_unknown_family_names_those_there_are(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", model_type="mamba")
    message = refusal(tmp_path, pair(target), UnsupportedError)
    assert "'mamba'" in message
    assert "qwen3" in message


def test_a_precision_that_the_compiler_does_not_build(tmp_path: Path, tiny_checkpoint: Path) -> None:
    message = refusal(tmp_path, pair(tiny_checkpoint, None, "target.precision=float16"), UnsupportedError)
    assert message.startswith("target.precision: backend 'onnxruntime' does not build 'float16'")


def test_a_compiler_that_is_not_installed_stops_a_build_and_not_a_plan(tmp_path: Path, tiny_checkpoint: Path) -> None:
    asked = pair(tiny_checkpoint, None, "backend=tensorrt", "target.precision=float16", "tensorrt.compute_capabilities=[sm90]")
    try:
        import tensorrt  # noqa: F401
    except ImportError:
        assert "tensorrt" in refusal(tmp_path, asked, EnvironmentLacksError)
        assert dry_plan(asked).version is None
    else:
        pytest.skip("mainline TensorRT is installed here")
