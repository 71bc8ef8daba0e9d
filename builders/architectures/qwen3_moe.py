"""Qwen3 with experts (30B-A3B, 235B-A22B, Coder): Qwen3's attention, and a mixture of experts in all layers or in some."""

from __future__ import annotations

from specbuild.errors import CheckpointError

from ..decoder_spec import DecoderSpec
from .base import DECODER_TENSORS, Config, Family, decoder, integer, layer_window, mixture


def _spec(config: Config) -> DecoderSpec:
    bias = bool(config.get("attention_bias", False))
    moe = mixture(
        config,
        intermediate_size=integer(config, "moe_intermediate_size"),
        normalised=bool(config.get("norm_topk_prob", False)),
        layers=_expert_layers(config),
    )
    # Unlike Qwen3, transformers' class takes hidden / heads where the config has no head_dim.
    return decoder(config, qkv_bias=bias, out_bias=bias, qk_norm=True, sliding_window=layer_window(config), moe=moe)


def _expert_layers(config: Config) -> tuple[int, ...]:
    """Every ``decoder_sparse_step``-th layer, counted from one, but for those that ``mlp_only_layers`` lists."""
    step, dense = integer(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise CheckpointError(f"config: 'mlp_only_layers' must be a list of layer numbers (seen: {dense!r}); correct config.json")
    return tuple(layer for layer in range(integer(config, "num_hidden_layers")) if (layer + 1) % step == 0 and layer not in dense)


FAMILY = Family(
    "qwen3_moe",
    _spec,
    {
        **DECODER_TENSORS,
        "router": "mlp.gate.weight",
        "expert_gate": "mlp.experts.{expert}.gate_proj.weight",
        "expert_up": "mlp.experts.{expert}.up_proj.weight",
        "expert_down": "mlp.experts.{expert}.down_proj.weight",
    },
)
