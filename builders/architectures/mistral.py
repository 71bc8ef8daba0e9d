"""Mistral 7B and its relatives: Llama's layers, with an optional sliding window in all of them."""

from __future__ import annotations

from ..decoder_spec import DecoderSpec
from .base import Config, Family, decoder, uniform_window


def _spec(config: Config) -> DecoderSpec:
    # transformers gives every layer of a mistral the window that is set, and 4096 when the key is absent.
    window = config.get("sliding_window", 4096)
    implied = ["sliding_attention" if window else "full_attention"]
    return decoder(config, sliding_window=uniform_window(config.get("layer_types") or implied, window))


FAMILY = Family("mistral", _spec)
