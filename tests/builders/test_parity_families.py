"""Parity with transformers in float32: every family on a tiny random model, and SmolLM2 on real text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoder_support import Logits, Sequences, compile_cpu, open_session
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.decoder_spec import DecoderSpec
from specbuild.builders.weights import CheckpointWeights

TOKENS = 48
COMMON = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
}
PLAIN = {"rope_theta": 10000.0, "rope_type": "default"}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
QWEN3_MOE = {"model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
CASES: dict[str, dict[str, Any]] = {
    "llama grouped tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama multi-head untied": {"model_type": "llama", "num_key_value_heads": 6, "tie_word_embeddings": False},
    "llama multi-query": {"model_type": "llama", "num_key_value_heads": 1},
    "llama biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama wide heads": {"model_type": "llama", "head_dim": 20},
    "llama rope llama3": {"model_type": "llama", "rope_parameters": LLAMA3},
    "llama rope linear": {"model_type": "llama", "rope_parameters": PLAIN | {"rope_type": "linear", "factor": 2.5}},
    "llama rope dynamic": {"model_type": "llama", "rope_parameters": PLAIN | {"rope_type": "dynamic", "factor": 2.0}},
    "mistral sliding": {"model_type": "mistral", "sliding_window": 9, "head_dim": 16},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 20, "tie_word_embeddings": False},
    "qwen3 multi-head": {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 6},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 5},
    "mixtral sliding": {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 9},
    "qwen3_moe": QWEN3_MOE | {"norm_topk_prob": True, "tie_word_embeddings": True},
    "qwen3_moe shares below one": QWEN3_MOE | {"norm_topk_prob": False, "attention_bias": True},
    "qwen3_moe every second layer": QWEN3_MOE | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
}


def reference_model(case: dict[str, Any]) -> Any:
    torch.manual_seed(7)
    options = COMMON | case
    config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # norms and biases that do something
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            assert torch.isfinite(parameter).all(), name
    return model


def reference_logits(model: Any, tokens: NDArray[np.int64]) -> Logits:
    with torch.no_grad():
        logits: Logits = model(input_ids=torch.from_numpy(tokens)).logits.numpy()
    return logits


def ways(spec: DecoderSpec, session: InferenceSession, tokens: NDArray[np.int64]) -> dict[str, Logits]:
    """Logits [S,V] of tokens [1,S] as one prefill, token by token, and after a wrong continuation was taken back."""
    prefill = Sequences(spec, session).step(tokens, 0)[0]
    one = Sequences(spec, session)
    incremental = np.concatenate([one.step(tokens[:, i : i + 1], i)[0] for i in range(tokens.shape[1])])
    back = Sequences(spec, session)
    half = tokens.shape[1] // 2
    parts = [back.step(tokens[:, :half], 0)]
    back.step(tokens[:, ::-1][:, :half].copy(), half)
    parts.append(back.step(tokens[:, half:], half))
    return {"prefill": prefill, "incremental": incremental, "after rollback": np.concatenate(parts, axis=1)[0]}


@pytest.mark.parametrize("name", CASES)
def test_family_is_what_transformers_computes(name: str, tmp_path: Path) -> None:
    model = reference_model(CASES[name])
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    checkpoint = open_checkpoint(str(tmp_path))
    spec = decoder_spec(checkpoint.config)
    engine = compile_cpu(spec, CheckpointWeights(checkpoint, spec, family(spec.family)), "float32", tmp_path)
    tokens = np.random.default_rng(3).integers(0, spec.vocab_size, (1, TOKENS))
    expected = reference_logits(model, tokens)[0]
    assert expected.std() > 0.5, "logits too flat to compare"
    seen = ways(spec, open_session(tmp_path / engine.file), tokens)
    for way, logits in seen.items():
        assert np.abs(logits - expected).max() <= 1e-4, way
        assert np.array_equal(logits, seen["prefill"]), way
