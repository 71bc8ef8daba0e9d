"""Qwen2 and Qwen2.5: biases on queries, keys and values."""

from __future__ import annotations

from ..decoder_spec import DecoderSpec
from .base import Config, Family, decoder, layer_window


def _spec(config: Config) -> DecoderSpec:
    return decoder(config, qkv_bias=True, sliding_window=layer_window(config))


FAMILY = Family("qwen2", _spec)
