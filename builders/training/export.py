"""A trained head as a folder in its published layout, which ``builders/heads`` reads like any other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from ..head_spec import ExitAdapter, HeadSpec, LayerHead, MedusaHead
from ..heads import eagle3, early_exit, medusa, mtp_deepseek
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
    layout = {"eagle3": eagle3.LAYOUT, "mtp": mtp_deepseek.LAYOUT, "medusa": medusa.LAYOUT, "early_exit": early_exit.LAYOUT}[spec.role]
    names = layout.names(spec, f"model.layers.{layers}." if spec.role == "mtp" else "")
    tensors: dict[str, NDArray[np.generic]] = {names[role]: value.detach().numpy().astype(np.float16) for role, value in parameters.items()}
    config = _config(spec, target_config) | {"vocab_size": total, "torch_dtype": "float16"}
    if not isinstance(spec, ExitAdapter):  # an exit drafts by the target's whole head
        tensors |= {D2T: ids - np.arange(len(ids)), T2D: np.isin(np.arange(total), ids)}
        config["draft_vocab_size"] = len(ids)
    # Not by save_file, whose files nobody but their owner may read.
    (folder / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
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
    if isinstance(spec, ExitAdapter):
        return {
            "architectures": ["EarlyExitAdapter"],
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.inner_size,
            "num_hidden_layers": spec.target_layers,
            "exit_layer": spec.taps[0],
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
