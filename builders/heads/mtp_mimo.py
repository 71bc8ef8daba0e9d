"""MTP modules as Xiaomi's MiMo stores them: features are the stream before the final norm, and the projection reads them first.

Names: vllm-project/vllm ``vllm/model_executor/models/mimo_mtp.py``; features: ``mimo.py`` beside it, whose model leaves the final norm to
the LM head. Embedding and LM head are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..checkpoint import ModelFiles
from ..decoder_spec import DecoderSpec
from ..head_spec import HeadSpec
from .base import Floats, Layout, layer_names
from .mtp_deepseek import mtp_head

PREFIX = "model.mtp_layers.0."


def _prefix(files: ModelFiles) -> str | None:
    return PREFIX if f"{PREFIX}input_proj.weight" in files.names() else None


def _spec(files: ModelFiles, target: DecoderSpec) -> HeadSpec:
    return replace(mtp_head(files, target), stream_features=True)


def _names(spec: HeadSpec, prefix: str) -> Mapping[str, str]:
    return {
        "embedding_norm": f"{prefix}token_layernorm.weight",
        "hidden_norm": f"{prefix}hidden_layernorm.weight",
        "eh_proj": f"{prefix}input_proj.weight",
        "norm": f"{prefix}final_layernorm.weight",
        **layer_names(prefix),
    }


def _adapt(role: str, tensor: Floats) -> Floats:
    """Columns of the projection in our order: embedding first."""
    return np.concatenate(np.split(tensor, 2, axis=1)[::-1], axis=1) if role == "eh_proj" else tensor


LAYOUT = Layout("mtp", "MiMo", _prefix, _spec, _names, _adapt)
