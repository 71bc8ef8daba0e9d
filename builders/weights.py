"""The tensors of a checkpoint, by the role that they have in a decoder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbuild.errors import CheckpointError, UnsupportedError

from .architectures.base import Family
from .checkpoint import Checkpoint, ModelFiles
from .decoder_spec import DecoderSpec, decoder_layer_shapes

BUFFER = re.compile(r"\.rotary_emb\.inv_freq$")
"""Old checkpoints store the frequencies that the config gives anyway."""


@dataclass(frozen=True)
class CheckpointWeights:
    """``Weights`` over a checkpoint. All names and shapes are checked when it is made, before anything is read.

    Raises:
        CheckpointError: a tensor is missing, or of another shape than the spec implies.
        UnsupportedError: a layer has a tensor that no role stands for: it computes something that would be left out.
    """

    checkpoint: Checkpoint
    spec: DecoderSpec
    family: Family

    def __post_init__(self) -> None:
        names = set(self.checkpoint.names())
        expected = set()
        for role, shape in _roles(self.spec):
            name = self._name(role)
            expected.add(name)
            if name not in names:
                hint = "; if the head is tied, set tie_word_embeddings in config.json" if name == self.family.tensors["head"] else ""
                raise CheckpointError(
                    f"{self.checkpoint.source}: tensor {name} is missing (expected shape {list(shape)}); "
                    f"the checkpoint is incomplete, corrupt or of another family than its config says{hint}"
                )
            if self.checkpoint.shape(name) != shape:
                raise CheckpointError(
                    f"{self.checkpoint.source}: tensor {name} has shape {list(self.checkpoint.shape(name))}, "
                    f"its config implies {list(shape)}; config and weights are not of one model"
                )
        layers = tuple(f"model.layers.{index}." for index in range(self.spec.num_layers))
        foreign = sorted(name for name in names - expected if name.startswith(layers) and not BUFFER.search(name))
        if foreign:
            raise UnsupportedError(
                f"{self.checkpoint.source}: tensor {foreign[0]} has no place in a {self.spec.family} decoder ({len(foreign)} such); "
                "check model_type and the bias keys of config.json"
            )

    def read(self, role: str) -> NDArray[np.float32]:
        """The tensor as contiguous float32, the caller's own.

        Raises:
            CheckpointError: it cannot be read, or holds NaN or an infinity, which a quantised engine would hide.
        """
        return read_finite(self.checkpoint, self._name(role))

    def _name(self, role: str) -> str:
        return tensor_name(self.family, "embedding" if role == "head" and self.spec.tied_head else role)


def read_finite(files: ModelFiles, name: str) -> NDArray[np.float32]:
    """The tensor ``name`` as contiguous float32, the caller's own.

    Raises:
        CheckpointError: it cannot be read, or holds NaN or an infinity, which a quantised engine would hide.
    """
    tensor = files.read(name)
    if not np.isfinite(tensor).all():
        raise CheckpointError(f"{files.source}: tensor {name} has values that are not finite; download the checkpoint again")
    return tensor


def tensor_name(family: Family, role: str) -> str:
    """What a checkpoint of ``family`` calls the tensor of ``role``."""
    if not role.startswith("layers."):
        return family.tensors[role]
    _, layer, part = role.split(".", 2)
    if part.startswith("experts."):
        _, expert, matrix = part.split(".")
        return f"model.layers.{layer}.{family.tensors[f'expert_{matrix}'].format(expert=expert)}"
    return f"model.layers.{layer}.{family.tensors[part]}"


def role_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Every role of a decoder → the shape of its tensor, in reading order."""
    return dict(_roles(spec))


def _roles(spec: DecoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    if spec.first_layer == 0:
        yield "embedding", (spec.vocab_size, spec.hidden_size)
    for index in spec.layers:
        layer = decoder_layer_shapes(spec, experts=spec.has_experts(index))
        yield from ((f"layers.{index}.{part}", shape) for part, shape in layer.items())
    yield "norm", (spec.hidden_size,)
    yield "head", (spec.vocab_size, spec.hidden_size)
