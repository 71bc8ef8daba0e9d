"""EAGLE-3 heads as SafeAILab/EAGLE and sgl-project/SpecForge publish them.

Names: SafeAILab/EAGLE ``eagle/model/cnets.py``, sgl-project/SpecForge ``specforge/modeling/draft/llama3_eagle.py`` and
``configs/*-eagle3.json``, ``*-eagle3.1.json``; vllm-project/vllm ``vllm/model_executor/models/llama_eagle3.py``. Taps: SpecForge's
``eagle_config.eagle_aux_hidden_state_layer_ids`` names layers whose *output* is taken (``eagle3_target_model.py`` hooks them, SGLang's
``set_eagle3_layers_to_capture`` adds 1), vLLM's key of the same name at the top level what *enters* a layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from specbuild.errors import CheckpointError

from ..architectures.base import decoder, integer
from ..checkpoint import ModelFiles
from ..decoder_spec import DecoderSpec
from ..head_spec import HeadSpec, LayerHead
from .base import Layout, layer_config, layer_names, marked_by, refuse_keys, vocabulary_size

AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


def _spec(files: ModelFiles, target: DecoderSpec) -> HeadSpec:
    refuse_keys(
        files,
        {
            "norm_before_residual": "the residual stream would start after hidden_norm",
            "norm_before_fc": "one norm over all taps together",
            "bias": "a bias in fc",
        },
    )
    if integer(files.config, "num_hidden_layers", 1) != 1:
        raise CheckpointError(
            f"{files.source}: num_hidden_layers is {files.config['num_hidden_layers']}; EAGLE-3 heads have 1; correct config.json"
        )
    config = layer_config(files, target)
    bias = bool(config.get("attention_bias"))
    return LayerHead(
        role="eagle3",
        hidden_size=integer(config, "hidden_size"),
        vocab_size=vocabulary_size(files, target),
        taps=_taps(files, target),
        layer=decoder(config | {"tie_word_embeddings": False}, qkv_bias=bias, out_bias=bias, mlp_bias=bool(config.get("mlp_bias"))),
        feature_norms=bool(files.config.get("fc_norm")) or "fc_norm.0.weight" in files.names(),
        normed_hidden=bool(files.config.get("norm_output")),
    )


def _taps(files: ModelFiles, target: DecoderSpec) -> tuple[int, ...]:
    """Without a key: those of the paper's code, which are also the defaults of SpecForge, SGLang and vLLM."""
    nested = (files.config.get("eagle_config") or {}).get(AUX_LAYERS)
    direct = files.config.get(AUX_LAYERS)
    given, shift = (nested, 1) if nested else (direct, 0)
    if not given:
        return 2, target.num_layers // 2, target.num_layers - 3
    if not isinstance(given, list) or not all(isinstance(layer, int) and not isinstance(layer, bool) for layer in given):
        raise CheckpointError(f"{files.source}: {AUX_LAYERS} must be a list of layer numbers (seen: {given!r}); correct config.json")
    return tuple(layer + shift for layer in given)


def layer_ids(taps: tuple[int, ...]) -> list[int]:
    """Taps as ``eagle_config.eagle_aux_hidden_state_layer_ids`` writes them, for a config of this layout."""
    return [tap - 1 for tap in taps]


def _names(spec: HeadSpec, prefix: str) -> Mapping[str, str]:
    return {
        "embedding": "embed_tokens.weight",
        "fc": "fc.weight",
        "embedding_norm": "midlayer.input_layernorm.weight",
        "hidden_norm": "midlayer.hidden_norm.weight",
        "norm": "norm.weight",
        "head": "lm_head.weight",
        **{f"feature_norms.{index}": f"fc_norm.{index}.weight" for index in range(len(spec.taps))},
        **layer_names("midlayer."),
    }


LAYOUT = Layout("eagle3", "EAGLE-3", marked_by("fc.weight"), _spec, _names)
