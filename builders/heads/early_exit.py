"""Adapters for an early exit, in a layout of our own: no one else publishes any.

``config.json`` says behind which layer of which target: ``exit_layer`` of ``num_hidden_layers``.
"""

from __future__ import annotations

from collections.abc import Mapping

from specbuild.errors import UnsupportedError

from ..architectures.base import integer
from ..checkpoint import ModelFiles
from ..decoder_spec import DecoderSpec
from ..head_spec import ExitAdapter, HeadSpec
from .base import D2T, Layout, marked_by


def _spec(files: ModelFiles, target: DecoderSpec) -> HeadSpec:
    if D2T in files.names():
        raise UnsupportedError(f"{files.source}: it has a {D2T}, but an early exit drafts by the target's own head; train it again")
    return ExitAdapter(
        role="early_exit",
        hidden_size=integer(files.config, "hidden_size"),
        vocab_size=target.vocab_size,
        taps=(integer(files.config, "exit_layer"),),
        inner_size=integer(files.config, "intermediate_size"),
        target_layers=integer(files.config, "num_hidden_layers"),
    )


def _names(spec: HeadSpec, prefix: str) -> Mapping[str, str]:
    return {"norm": "norm.weight", "adapter.up": "up_proj.weight", "adapter.down": "down_proj.weight"}


LAYOUT = Layout("early_exit", "specbuild's own", marked_by("up_proj.weight"), _spec, _names)
