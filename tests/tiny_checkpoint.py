"""A tiny random Llama as a Hugging Face folder: real files, in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 256,
}


def save_tiny(
    folder: Path, *, seed: int = 0, tokens: tuple[str, ...] = (), merges: tuple[tuple[str, str], ...] = (), **changes: Any
) -> Path:
    """Write the checkpoint into ``folder``: bytes and ``<|end|>`` (id 256) are its tokens, then ``tokens``; ``changes`` to its config."""
    config = CONFIG | changes
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))
    tokenizer(tokens, merges).save(str(folder / "tokenizer.json"))
    save_file(_tensors(config, np.random.default_rng(seed)), folder / "model.safetensors")
    return folder


def tokenizer(tokens: tuple[str, ...] = (), merges: tuple[tuple[str, str], ...] = ()) -> Tokenizer:
    """A byte-level tokenizer; each merge adds its token after the added ones."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    # Named here, or they would get the first ids past the number of tokens, which are those of merges.
    vocabulary |= {token: 256 + index for index, token in enumerate((END, *tokens))}
    vocabulary |= {left + right: 257 + len(tokens) + rank for rank, (left, right) in enumerate(merges)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (END, *tokens)])
    return made


def _tensors(config: dict[str, Any], random: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "self_attn.q_proj": (heads, hidden),
                "self_attn.k_proj": (kv_heads, hidden),
                "self_attn.v_proj": (kv_heads, hidden),
                "self_attn.o_proj": (hidden, heads),
                "post_attention_layernorm": (hidden,),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }.items()
        }
    return {
        name: (1 + 0.1 * random.standard_normal(shape) if len(shape) == 1 else random.standard_normal(shape) / 8).astype(np.float32)
        for name, shape in shapes.items()
    }
