"""MTP modules as Qwen3-Next stores them: under ``mtp.``, a Qwen3 layer, norms whose stored weight is one less than the factor.

Names: vllm-project/vllm ``vllm/model_executor/models/qwen3_next_mtp.py``; the norm: transformers ``Qwen3NextRMSNorm``. What Qwen3-Next
itself has beyond a Qwen3 layer (experts, a gate on the attention's output, a partial rotation) is refused by key or by shape. Embedding and
LM head are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..checkpoint import ModelFiles
from ..decoder_spec import DecoderSpec
from ..head_spec import HeadSpec
from .base import Floats, Layout, layer_names
from .mtp_deepseek import mtp_head


def _prefix(files: ModelFiles) -> str | None:
    return "mtp." if "mtp.fc.weight" in files.names() else None


def _spec(files: ModelFiles, target: DecoderSpec) -> HeadSpec:
    return mtp_head(files, target, "qwen3")


def _names(spec: HeadSpec, prefix: str) -> Mapping[str, str]:
    return {
        "embedding_norm": f"{prefix}pre_fc_norm_embedding.weight",
        "hidden_norm": f"{prefix}pre_fc_norm_hidden.weight",
        "eh_proj": f"{prefix}fc.weight",
        "norm": f"{prefix}norm.weight",
        **layer_names(f"{prefix}layers.0."),
    }


def _adapt(role: str, tensor: Floats) -> Floats:
    return tensor + 1 if role.endswith("norm") else tensor


LAYOUT = Layout("mtp", "Qwen3-Next", _prefix, _spec, _names, _adapt)
