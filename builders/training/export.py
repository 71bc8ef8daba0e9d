"""A trained head as a folder in its published layout, which ``builders/heads`` reads like any other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from ..head_spec import HeadSpec, LayerHead, MedusaHead
from ..heads import eagle3, medusa, mtp_deepseek
from ..heads.base import D2T, T2D

LAYER_KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
    "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "attention_bias", "mlp_bias", "sliding_window",
)  # fmt: skip
"""Keys of the target's config that hold for a layer of a head too."""
PROVENANCE = "provenance.json"


def export(
    folder: Path,
    spec: HeadSpec,
    parameters: Mapping[str, Tensor],
    ids: NDArray[np.int64],
    target_config: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> None:
    """Write config.json, model.safetensors (float16) and provenance.json. Embedding and LM head are the target's, so they stay out.

    Args:
        ids: [V_draft] the target's token of each draft id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    total, layers = int(target_config["vocab_size"]), int(target_config["num_hidden_layers"])
    layout = {"eagle3": eagle3.LAYOUT, "mtp": mtp_deepseek.LAYOUT, "medusa": medusa.LAYOUT}[spec.role]
    names = layout.names(spec, f"model.layers.{layers}." if spec.role == "mtp" else "")
    tensors: dict[str, NDArray[np.generic]] = {names[role]: value.detach().numpy().astype(np.float16) for role, value in parameters.items()}
    tensors[D2T] = ids - np.arange(len(ids))
    tensors[T2D] = np.isin(np.arange(total), ids)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = _config(spec, target_config) | {"vocab_size": total, "draft_vocab_size": len(ids), "torch_dtype": "float16"}
    for name, content in (("config.json", config), (PROVENANCE, provenance)):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(spec: HeadSpec, target: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(spec, MedusaHead):
        return {
            "architectures": ["MedusaModel"],
            "hidden_size": spec.hidden_size,
            "medusa_num_heads": spec.predictions,
            "medusa_num_layers": spec.blocks,
        }
    assert isinstance(spec, LayerHead)
    layer = {key: target[key] for key in LAYER_KEYS if target.get(key) is not None}
    common = layer | {"model_type": target["model_type"], "tie_word_embeddings": False}
    if spec.role == "mtp":
        return common | {"num_hidden_layers": target["num_hidden_layers"], "num_nextn_predict_layers": 1}
    return common | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "fc_norm": spec.feature_norms,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": eagle3.layer_ids(spec.taps)},
    }
