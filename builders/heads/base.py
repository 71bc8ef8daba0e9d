"""What a published layout of draft heads is, and the reading of config keys and maps that layouts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.errors import CheckpointError, UnsupportedError
from specbuild.recipe import TrainedRole

from ..architectures.base import DECODER_TENSORS, integer
from ..checkpoint import ModelFiles
from ..decoder_spec import DecoderSpec
from ..head_spec import HeadSpec

D2T, T2D = "d2t", "t2d"
"""Maps between draft and target vocabulary: int64 [V_draft], what is to be added to a draft id; bool [V], what has a draft id."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Layout:
    """One layout: how it is known, how its config becomes a spec, and what its tensors are called."""

    role: TrainedRole
    name: str
    prefix: Callable[[ModelFiles], str | None]
    """What the names of the head's own tensors start with; None: these files are of another layout."""
    spec: Callable[[ModelFiles, DecoderSpec], HeadSpec]
    """(files, the target it is for) → spec."""
    names: Callable[[HeadSpec, str], Mapping[str, str]]
    """(spec, prefix) → role → tensor name."""
    adapt: Callable[[str, Floats], Floats] = lambda role, tensor: tensor
    """(role, tensor as stored) → tensor as ``head_shapes`` describes it."""


def marked_by(tensor: str) -> Callable[[ModelFiles], str | None]:
    """A ``Layout.prefix`` of layouts whose tensors have fixed names, of which ``tensor`` is one; no prefix."""
    return lambda files: "" if tensor in files.names() else None


def layer_names(prefix: str) -> dict[str, str]:
    """Role → tensor name of a decoder layer whose names start with ``prefix``."""
    return {f"layers.0.{part}": prefix + name for part, name in DECODER_TENSORS.items() if part not in ("embedding", "norm", "head")}


def layer_config(files: ModelFiles, target: DecoderSpec) -> dict[str, Any]:
    """The config of the head's layer alone, as that of a decoder of one layer; what it leaves out is as in the target."""
    defaults = {"model_type": "llama", "vocab_size": target.vocab_size, "max_position_embeddings": target.max_position}
    given = {key: value for key, value in files.config.items() if value is not None}
    # Layer types and windows speak of the layers of the whole model.
    return defaults | given | {"num_hidden_layers": 1, "layer_types": None}


def vocabulary_size(files: ModelFiles, target: DecoderSpec) -> int:
    """Of the draft vocabulary: ``draft_vocab_size``, else the whole one."""
    return integer(files.config, "draft_vocab_size", integer(files.config, "vocab_size", target.vocab_size))


def draft_ids(files: ModelFiles, role: TrainedRole) -> NDArray[np.int64] | None:
    """The target's id of each draft id [V_draft]: ``d2t`` says what to add to the draft id (``arange``). None: the same ids."""
    if D2T not in files.names():
        return None
    offsets = files.read(D2T)
    if offsets.ndim != 1:
        raise CheckpointError(f"{files.source}: {D2T} has shape {list(offsets.shape)}, a vector was expected; export the {role} head again")
    ids: NDArray[np.int64] = offsets.astype(np.int64) + np.arange(offsets.size)
    return ids


def refuse_keys(files: ModelFiles, keys: Mapping[str, str]) -> None:
    """Raise UnsupportedError where one of ``keys`` (key → what it would do) is set."""
    for key, effect in keys.items():
        if files.config.get(key):
            raise UnsupportedError(
                f"{files.source}: {key} {files.config[key]!r} is not supported ({effect}); choose a head trained without it"
            )
