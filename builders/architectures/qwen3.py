"""Qwen3: RMS norms over query and key heads, whose dimension is its own key and not hidden / heads."""

from __future__ import annotations

from ..decoder_spec import DecoderSpec
from .base import Config, Family, decoder, layer_window


def _spec(config: Config) -> DecoderSpec:
    bias = bool(config.get("attention_bias", False))
    return decoder(config, head_dim=128, qkv_bias=bias, out_bias=bias, qk_norm=True, sliding_window=layer_window(config))


FAMILY = Family("qwen3", _spec)
