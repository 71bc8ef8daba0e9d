"""GGUF metadata and tensor names in Hugging Face's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from specbuild.errors import CheckpointError, UnsupportedError

from ..rope import FREQUENCY_FACTORS

Metadata = Mapping[str, Any]

CONFIG_KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_local_experts",
}
"""Key after ``<architecture>.`` → Hugging Face config key."""

TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
INTERLEAVED = frozenset({"llama"})
"""Architectures whose query and key rows llama.cpp stores for interleaved rotation."""


def hugging_face_name(name: str) -> str:
    """``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``; a name that is not known stays as it is."""
    stem, _, suffix = name.rpartition(".")
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{suffix}"
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if layer and layer[2] in LAYER_NAMES:
        return f"model.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.{suffix}"
    return name


def hugging_face_config(metadata: Metadata, shapes: Mapping[str, tuple[int, ...]], rope_factors: list[float] | None) -> dict[str, Any]:
    """Hugging Face config keys for a GGUF file's metadata.

    ``shapes``: by Hugging Face name; they tell what the metadata does not (ties, biases, vocabulary).
    ``rope_factors``: content of the tensor ``rope_freqs.weight``, if the file has it.

    Raises:
        CheckpointError: the metadata names no architecture.
        UnsupportedError: a value changes the mathematics in a way that is not built.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(f"GGUF metadata: general.architecture is {architecture!r}; convert the model anew")
    own = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items() if key.startswith(f"{architecture}.")}
    config: dict[str, Any] = {"model_type": architecture, "hidden_act": "silu"}
    config |= {name: _one(key, own[key]) for key, name in CONFIG_KEYS.items() if key in own}
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // max(config.get("num_attention_heads", 1), 1)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, head_dim) != head_dim:
            raise UnsupportedError(
                f"GGUF metadata: {architecture}.{key} {own[key]!r} differs from the head dimension {head_dim}; not supported"
            )
    if scaling := _rope_scaling(own, rope_factors):
        config["rope_scaling"] = scaling
    if "model.embed_tokens.weight" in shapes:
        config["vocab_size"] = shapes["model.embed_tokens.weight"][0]
    config["tie_word_embeddings"] = "lm_head.weight" not in shapes
    config["attention_bias"] = "model.layers.0.self_attn.o_proj.bias" in shapes
    config["mlp_bias"] = "model.layers.0.mlp.up_proj.bias" in shapes
    config["use_sliding_window"] = False
    return config | generation_config(metadata)


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Special tokens under generation_config.json's keys; the end of a turn ends a text too."""
    ids = {f"{name}_token_id": metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in (("bos", "bos"), ("pad", "padding"))}
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    ids["eos_token_id"] = sorted({end for end in ends if end is not None}) or None
    return {key: value for key, value in ids.items() if value is not None}


def interleaved_heads(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    """Tensors that are stored for interleaved rotation → the number of heads in their rows."""
    query = config.get("num_attention_heads")
    if config["model_type"] not in INTERLEAVED or query is None:
        return {}
    key = config.get("num_key_value_heads", query)
    heads = {"self_attn.q_proj": query, "self_attn.k_proj": key}
    return {name: count for name in names for part, count in heads.items() if f".{part}." in name}


def _rope_scaling(own: Mapping[str, Any], factors: list[float] | None) -> dict[str, Any] | None:
    old_factor = own.get("rope.scale_linear", 1)
    kind = own.get("rope.scaling.type", "none" if old_factor == 1 else "linear")
    if kind != "none":
        return {"rope_type": kind, "factor": own.get("rope.scaling.factor", old_factor)}
    return None if factors is None else {"rope_type": FREQUENCY_FACTORS, "factors": factors}


def _one(key: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise UnsupportedError(f"GGUF metadata: {key} differs by layer ({sorted(set(value))}); one value for all layers is supported")
    return value[0]
