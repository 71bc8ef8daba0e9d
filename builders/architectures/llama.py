"""Llama 2, 3 and 3.x, and what shares their config: SmolLM, SmolLM2, TinyLlama, …"""

from __future__ import annotations

from ..decoder_spec import DecoderSpec
from .base import Config, Family, decoder, uniform_window


def _spec(config: Config) -> DecoderSpec:
    uniform_window(config.get("layer_types") or ["full_attention"], None)
    bias = bool(config.get("attention_bias", False))
    return decoder(config, qkv_bias=bias, out_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)))


FAMILY = Family("llama", _spec)
