"""MTP modules as DeepSeek-V3 stores them: a layer more, behind the last one, with ``enorm``, ``hnorm``, ``eh_proj`` and a shared head.

Names: vllm-project/vllm ``vllm/model_executor/models/deepseek_mtp.py`` (``eh_proj`` reads embedding, then hidden state). A folder with
these tensors alone is read too, the layer being of the family that its config names. Of several modules the first is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from specbuild.errors import UnsupportedError

from ..architectures import decoder_spec
from ..checkpoint import ModelFiles
from ..decoder_spec import DecoderSpec
from ..head_spec import HeadSpec, LayerHead
from .base import Layout, layer_config, layer_names, vocabulary_size

MARK = re.compile(r"(model\.layers\.(\d+)\.)eh_proj\.weight")


def mtp_head(files: ModelFiles, target: DecoderSpec, model_type: str | None = None) -> LayerHead:
    """The spec of any MTP module: one layer of ``model_type``, the config's own unless given."""
    config = layer_config(files, target) | {"tie_word_embeddings": False}
    layer = decoder_spec(config if model_type is None else config | {"model_type": model_type})
    if layer.moe is not None:
        raise UnsupportedError(f"{files.source}: an MTP module of family {layer.family!r} has experts, which heads are not built with")
    return LayerHead(
        role="mtp",
        hidden_size=layer.hidden_size,
        vocab_size=vocabulary_size(files, target),
        taps=(target.num_layers,),
        layer=layer,
    )


def _prefix(files: ModelFiles) -> str | None:
    found = [match for match in map(MARK.fullmatch, files.names()) if match]
    return min(found, key=lambda match: int(match[2]))[1] if found else None


def _names(spec: HeadSpec, prefix: str) -> Mapping[str, str]:
    return {
        "embedding": f"{prefix}embed_tokens.weight",
        "embedding_norm": f"{prefix}enorm.weight",
        "hidden_norm": f"{prefix}hnorm.weight",
        "eh_proj": f"{prefix}eh_proj.weight",
        "norm": f"{prefix}shared_head.norm.weight",
        "head": f"{prefix}shared_head.head.weight",
        **layer_names(prefix),
    }


LAYOUT = Layout("mtp", "DeepSeek-V3", _prefix, mtp_head, _names)
