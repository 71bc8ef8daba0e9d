"""Medusa-1 heads as FasterDecoding/Medusa publishes them, and without LM heads of their own, which are then the target's.

Names: FasterDecoding/Medusa ``medusa/model/medusa_model.py`` (``medusa_head``, a ModuleList of Sequentials of ResBlocks and one Linear).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..architectures.base import integer
from ..checkpoint import ModelFiles
from ..decoder_spec import DecoderSpec
from ..head_spec import HeadSpec, MedusaHead
from .base import Layout, marked_by, vocabulary_size


def _spec(files: ModelFiles, target: DecoderSpec) -> HeadSpec:
    blocks = integer(files.config, "medusa_num_layers", 1)
    return MedusaHead(
        role="medusa",
        hidden_size=integer(files.config, "hidden_size", target.hidden_size),  # Medusa's own config.json leaves it to the base model
        vocab_size=vocabulary_size(files, target),
        taps=(target.num_layers,),
        predictions=integer(files.config, "medusa_num_heads"),
        blocks=blocks,
        shared_head=f"0.{blocks}.weight" not in files.names(),
    )


def _names(spec: HeadSpec, prefix: str) -> Mapping[str, str]:
    assert isinstance(spec, MedusaHead)
    names: dict[str, str] = {}
    for head in range(spec.predictions):
        for block in range(spec.blocks):
            names[f"blocks.{head}.{block}"] = f"{head}.{block}.linear.weight"
            names[f"blocks.{head}.{block}_bias"] = f"{head}.{block}.linear.bias"
        names[f"heads.{head}"] = f"{head}.{spec.blocks}.weight"
    return names


LAYOUT = Layout("medusa", "Medusa-1", marked_by("0.0.linear.weight"), _spec, _names)
