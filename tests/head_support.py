"""Draft heads in their published layouts: tiny random ones for tiny targets, written as the projects that publish them write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tiny_checkpoint import CONFIG, save_tiny

LAYERS, HIDDEN, VOCABULARY = 4, 64, 264
DRAFT_IDS = np.array([3, 7, 8, 11, *range(20, 80), 256], np.int64)
"""A draft vocabulary: the target's ids."""

Tensors = dict[str, NDArray[Any]]


def save_target(folder: Path, **changes: Any) -> Path:
    return save_tiny(folder, num_hidden_layers=LAYERS, **changes)


def save_head(folder: Path, config: dict[str, Any], tensors: Tensors, file: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / file)
    return folder


def eagle3(*, norms: bool = False, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """SpecForge's layout, taps 1, 2 and 3 (the outputs of layers 0, 1 and 2); ``norms``: EAGLE 3.1."""
    config = {key: CONFIG[key] for key in CONFIG if key not in ("bos_token_id", "eos_token_id")}
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": len(DRAFT_IDS)}
    config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, "tie_word_embeddings": False}
    config |= {"fc_norm": True, "norm_output": True} if norms else {}
    random = np.random.default_rng(5)
    tensors = {"fc.weight": matrix(random, HIDDEN, 3 * HIDDEN), "lm_head.weight": matrix(random, len(DRAFT_IDS), HIDDEN)}
    tensors |= {"norm.weight": scale(random), "midlayer.hidden_norm.weight": scale(random)}
    tensors |= layer(random, "midlayer.", width=2 * HIDDEN)
    tensors |= {f"fc_norm.{tap}.weight": scale(random) for tap in range(3 if norms else 0)}
    used = np.zeros(VOCABULARY, np.bool_)
    used[DRAFT_IDS] = True
    tensors |= {"d2t": DRAFT_IDS - np.arange(len(DRAFT_IDS)), "t2d": used}
    return config | changes, tensors


def medusa(*, own_heads: bool = True, heads: int = 3, blocks: int = 2) -> tuple[dict[str, Any], Tensors]:
    """Medusa-1: the config knows no more than the number of heads and of their blocks."""
    random, tensors = np.random.default_rng(6), Tensors()
    for head in range(heads):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = matrix(random, HIDDEN, HIDDEN)
            tensors[f"{head}.{block}.linear.bias"] = scale(random)
        if own_heads:
            tensors[f"{head}.{blocks}.weight"] = matrix(random, VOCABULARY, HIDDEN)
    return {"medusa_num_heads": heads, "medusa_num_layers": blocks, "base_model_name_or_path": "tiny"}, tensors


def exit_adapter(layers: int, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """Behind the first ``layers`` of the target."""
    config = {"hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": LAYERS, "exit_layer": layers}
    random = np.random.default_rng(8)
    tensors = {"up_proj.weight": matrix(random, 96, HIDDEN), "down_proj.weight": matrix(random, HIDDEN, 96), "norm.weight": scale(random)}
    return config | changes, tensors


def mtp(layout: str, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """One module in the layout of DeepSeek-V3 (own head and embedding), MiMo or Qwen3-Next."""
    random, norm = np.random.default_rng(7), scale
    config = dict(CONFIG) | {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    projection = matrix(random, HIDDEN, 2 * HIDDEN)
    if layout == "deepseek":
        at = f"model.layers.{LAYERS}."
        names = [f"{at}enorm", f"{at}hnorm", f"{at}eh_proj", f"{at}shared_head.norm", at]
        own = {f"{at}{name}.weight": matrix(random, VOCABULARY, HIDDEN) for name in ("embed_tokens", "shared_head.head")}
    elif layout == "mimo":
        at = "model.mtp_layers.0."
        names = [f"{at}token_layernorm", f"{at}hidden_layernorm", f"{at}input_proj", f"{at}final_layernorm", at]
        biases = {"q": HIDDEN, "k": HIDDEN // 2, "v": HIDDEN // 2}
        own = {f"{at}self_attn.{part}_proj.bias": matrix(random, size, 1)[:, 0] for part, size in biases.items()}
        config["model_type"] = "mimo"
    else:
        names = ["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm", "mtp.layers.0."]
        own = {f"mtp.layers.0.self_attn.{part}_norm.weight": scale(random, 16) for part in "qk"}
        config["model_type"] = "qwen3_next"
    tensors = {f"{names[2]}.weight": projection, **own, **layer(random, names[4])}
    tensors |= {f"{name}.weight": norm(random) for name in (names[0], names[1], names[3])}
    return config | changes, tensors


def layer(random: np.random.Generator, prefix: str, width: int = HIDDEN) -> Tensors:
    shapes = {"q": (HIDDEN, width), "k": (HIDDEN // 2, width), "v": (HIDDEN // 2, width), "o": (HIDDEN, HIDDEN)}
    tensors: Tensors = {f"{prefix}self_attn.{part}_proj.weight": matrix(random, *shape) for part, shape in shapes.items()}
    mlp = {"gate": (96, HIDDEN), "up": (96, HIDDEN), "down": (HIDDEN, 96)}
    tensors |= {f"{prefix}mlp.{part}_proj.weight": matrix(random, *shape) for part, shape in mlp.items()}
    return tensors | {f"{prefix}{name}_layernorm.weight": scale(random) for name in ("input", "post_attention")}


def matrix(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return (random.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)


def scale(random: np.random.Generator, size: int = HIDDEN) -> NDArray[np.float32]:
    return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)
