"""Mixtral: Mistral's attention, and in every layer a mixture of experts."""

from __future__ import annotations

from ..decoder_spec import DecoderSpec
from .base import DECODER_TENSORS, Config, Family, decoder, integer, mixture, uniform_window


def _spec(config: Config) -> DecoderSpec:
    window = config.get("sliding_window")
    implied = ["sliding_attention" if window else "full_attention"]
    layers = tuple(range(integer(config, "num_hidden_layers")))
    moe = mixture(config, intermediate_size=integer(config, "intermediate_size"), normalised=True, layers=layers)
    return decoder(config, sliding_window=uniform_window(config.get("layer_types") or implied, window), moe=moe)


FAMILY = Family(
    "mixtral",
    _spec,
    {
        **DECODER_TENSORS,
        "router": "block_sparse_moe.gate.weight",
        "expert_gate": "block_sparse_moe.experts.{expert}.w1.weight",
        "expert_up": "block_sparse_moe.experts.{expert}.w3.weight",
        "expert_down": "block_sparse_moe.experts.{expert}.w2.weight",
    },
)
