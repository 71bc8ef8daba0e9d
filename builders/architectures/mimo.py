"""Xiaomi's MiMo: a Qwen2 whose checkpoint brings MTP modules along (see ``heads/mtp_mimo.py``)."""

from __future__ import annotations

from ..decoder_spec import DecoderSpec
from .base import Config, Family, decoder, layer_window


def _spec(config: Config) -> DecoderSpec:
    return decoder(config, qkv_bias=True, sliding_window=layer_window(config))


FAMILY = Family("mimo", _spec)
