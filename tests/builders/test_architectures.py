"""Families: tiny random transformers models become specs whose roles are those models' parameters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from specbuild.builders.architectures import decoder_spec, families, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.weights import CheckpointWeights, role_shapes
from specbuild.errors import CheckpointError, UnsupportedError

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("Llama", {}),
    "llama-mha-tied": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-mqa-biases": ("Llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "mistral-window": ("Mistral", {"sliding_window": 8}),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-bias": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
}


def _saved(folder: Path, case: str) -> tuple[Any, Path]:
    name, extra = CASES[case]
    torch.manual_seed(7)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**{**SMALL, **extra}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model, folder


@pytest.mark.parametrize("case", CASES)
def test_every_role_is_the_models_parameter(case: str, tmp_path: Path) -> None:
    model, folder = _saved(tmp_path, case)
    checkpoint = open_checkpoint(str(folder))
    spec = decoder_spec(checkpoint.config)
    weights = CheckpointWeights(checkpoint, spec, family(spec.family))
    state = model.state_dict()
    read = set()
    for role, shape in role_shapes(spec).items():
        tensor = weights.read(role)
        assert tensor.shape == shape
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous
        matching = [name for name, value in state.items() if tuple(value.shape) == shape and np.array_equal(value.numpy(), tensor)]
        assert matching, role
        read.update(matching)
    assert read == set(state)


@pytest.mark.parametrize("case", CASES)
def test_spec_says_what_the_model_is(case: str, tmp_path: Path) -> None:
    model, _ = _saved(tmp_path, case)
    spec = decoder_spec(model.config.to_dict())
    attention = model.model.layers[0].self_attn
    assert spec.family == model.config.model_type
    assert spec.head_dim == attention.head_dim
    assert spec.num_heads == attention.q_proj.out_features // attention.head_dim
    assert spec.num_kv_heads == attention.k_proj.out_features // attention.head_dim
    assert spec.qkv_bias == (attention.q_proj.bias is not None)
    assert spec.out_bias == (attention.o_proj.bias is not None)
    assert spec.mlp_bias == (model.model.layers[0].mlp.up_proj.bias is not None)
    assert spec.qk_norm == hasattr(attention, "q_norm")
    assert spec.sliding_window == (8 if "window" in case else None)
    assert spec.tied_head == bool(model.config.tie_word_embeddings)
    assert spec.max_position == 128
    assert spec.norm_eps == model.model.norm.variance_epsilon


def test_a_tied_head_is_the_embedding_even_when_the_file_has_a_head(tmp_path: Path) -> None:
    _, folder = _saved(tmp_path, "llama-gqa")
    checkpoint = open_checkpoint(str(folder))
    spec = decoder_spec({**checkpoint.config, "tie_word_embeddings": True})
    weights = CheckpointWeights(checkpoint, spec, family("llama"))
    np.testing.assert_array_equal(weights.read("head"), weights.read("embedding"))


def test_an_untied_head_that_is_missing_is_named(tmp_path: Path) -> None:
    _, folder = _saved(tmp_path, "llama-mha-tied")
    checkpoint = open_checkpoint(str(folder))
    spec = decoder_spec({**checkpoint.config, "tie_word_embeddings": False})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing \(expected shape \[96, 32\]\).*tie_word_embeddings"):
        CheckpointWeights(checkpoint, spec, family("llama"))


def test_a_shape_that_the_config_does_not_imply_is_refused(tmp_path: Path) -> None:
    _, folder = _saved(tmp_path, "llama-gqa")
    checkpoint = open_checkpoint(str(folder))
    spec = decoder_spec({**checkpoint.config, "intermediate_size": 64})
    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.weight has shape \[48, 32\], its config implies \[64, 32\]"):
        CheckpointWeights(checkpoint, spec, family("llama"))


def test_a_tensor_without_a_role_is_refused(tmp_path: Path) -> None:
    _, folder = _saved(tmp_path, "qwen3")
    checkpoint = open_checkpoint(str(folder))
    spec = decoder_spec({**checkpoint.config, "model_type": "llama"})
    with pytest.raises(UnsupportedError, match=r"k_norm\.weight has no place in a llama decoder \(4 such\)"):
        CheckpointWeights(checkpoint, spec, family("llama"))


def test_adding_a_family_is_adding_a_file() -> None:
    assert sorted(families()) == ["llama", "mimo", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"]


def test_an_unknown_family_lists_what_there_is() -> None:
    with pytest.raises(
        UnsupportedError, match=r"'qwen' is not .* There are: llama, mimo, mistral, mixtral, qwen2, qwen3, qwen3_moe\. Did you mean 'qwen"
    ):
        decoder_spec({**SMALL, "model_type": "qwen"})
    with pytest.raises(UnsupportedError, match="family None"):
        decoder_spec(SMALL)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("hidden_act", "gelu", "hidden_act 'gelu' is not supported by family 'llama'; supported: 'silu'"),
        ("pretraining_tp", 2, "pretraining_tp 2"),
        ("partial_rotary_factor", 0.5, r"partial_rotary_factor 0\.5"),
        ("final_logit_softcapping", 30.0, r"final_logit_softcapping 30\.0 .* supported: leaving it out"),
        ("num_local_experts", 8, "num_local_experts 8"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "rope_type 'yarn'"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "quantization_config of kind 'gptq'"),
        ("layer_types", ["full_attention", "sliding_attention"], "layer_types has full_attention, sliding_attention"),
    ],
)
def test_other_mathematics_is_refused(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(UnsupportedError, match=sentence):
        decoder_spec({**SMALL, "model_type": "llama", key: value})


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_a_window_in_some_layers_is_refused(model_type: str) -> None:
    config = {**SMALL, "model_type": model_type, "use_sliding_window": True, "sliding_window": 8}
    with pytest.raises(UnsupportedError, match="full_attention, sliding_attention with sliding_window 8"):
        decoder_spec({**config, "max_window_layers": 1})
    assert decoder_spec({**config, "max_window_layers": 2}).sliding_window is None
    assert decoder_spec({**config, "max_window_layers": 0}).sliding_window == 8


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", None), ("vocab_size", 0), ("num_hidden_layers", "2"), ("head_dim", True), ("head_dim", 2**31)]
)
def test_an_impossible_number_is_refused(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"'{key}' must be a whole number of 1 to 2147483647 \\(seen: {value!r}\\)"):
        decoder_spec({**SMALL, "model_type": "llama", key: value})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rms_norm_eps": "x"}, "'rms_norm_eps' must be a finite number, not below 0 (seen: 'x')"),
        ({"rms_norm_eps": math.nan}, "'rms_norm_eps' must be a finite number, not below 0 (seen: nan)"),
        ({"layer_types": 3}, "'layer_types' must be a list of words (seen: 3)"),
        ({"layer_types": [[]]}, "'layer_types' must be a list of words (seen: [[]])"),
        ({"rope_scaling": "x"}, "the rope parameters must be an object (seen: 'x')"),
        ({"model_type": "mistral", "sliding_window": "x"}, "'sliding_window' must be a whole number of 1 to 2147483647 (seen: 'x')"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "x"}, "'max_window_layers' must be a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        decoder_spec({**SMALL, "model_type": "llama", **changes})
    assert sentence in str(refused.value)


def test_a_head_has_bounds() -> None:
    with pytest.raises(UnsupportedError, match=r"head_dim 1000000000 is not supported; .* an even one of at most 4096"):
        decoder_spec({**SMALL, "model_type": "llama", "head_dim": 10**9})


@pytest.mark.parametrize("model_type", [["llama"], {}, 3, None])
def test_a_family_is_a_word(model_type: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"model family .* is not supported\. There are: llama"):
        decoder_spec({**SMALL, "model_type": model_type})


def test_heads_must_divide() -> None:
    with pytest.raises(CheckpointError, match="num_attention_heads 4 is not a multiple of num_key_value_heads 3"):
        decoder_spec({**SMALL, "model_type": "llama", "num_key_value_heads": 3})
