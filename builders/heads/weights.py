"""The tensors of a draft head, by the role that they have in it; what it does not bring along is the target's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbuild.errors import CheckpointError, UnsupportedError

from ..checkpoint import ModelFiles
from ..decoder_spec import Weights
from ..head_spec import HeadSpec, head_shapes
from ..weights import read_finite
from .base import D2T, T2D, Layout

SHARED = ("embedding", "head")
"""Roles that a head may leave to its target."""
FEATURE_SCALE = "feature_scale"


@dataclass(frozen=True)
class HeadWeights:
    """``Weights`` over a head's files and its target's. All names and shapes are checked when it is made, before anything is read.

    Raises:
        CheckpointError: a tensor is missing, or of another shape than the spec implies.
        UnsupportedError: there is a tensor that no role stands for: it computes something that would be left out.
    """

    files: ModelFiles
    spec: HeadSpec
    layout: Layout
    prefix: str
    target: Weights
    d2t: NDArray[np.int64] | None
    """The target's id of each draft id; None: the same."""

    def __post_init__(self) -> None:
        there, names = set(self.files.names()), self._names()
        for role, shape in head_shapes(self.spec).items():
            name = names.get(role, "")
            if name not in there:
                if role in (*SHARED, FEATURE_SCALE):
                    continue
                raise CheckpointError(
                    f"{self.files.source}: tensor {name} is missing (expected shape {list(shape)}); "
                    f"the head is incomplete or of another layout than {self.layout.name}"
                )
            seen = self.files.shape(name)
            if seen != shape:
                raise CheckpointError(
                    f"{self.files.source}: tensor {name} has shape {list(seen)}, its config implies {list(shape)}; "
                    "config and weights are not of one head"
                )
        known = {names[role] for role in head_shapes(self.spec) if role in names} | {D2T, T2D}
        foreign = sorted(name for name in there - known if name.startswith(self.prefix))
        if foreign:
            raise UnsupportedError(
                f"{self.files.source}: tensor {foreign[0]} has no place in a head of the layout {self.layout.name} ({len(foreign)} such); "
                "check the bias and norm keys of config.json"
            )

    def read(self, role: str) -> NDArray[np.float32]:
        """See ``Weights``; an LM head that is the target's has the rows of the draft vocabulary alone."""
        name = self._names().get(role, "")
        if name in self.files.names():
            return self.layout.adapt(role, read_finite(self.files, name))
        if role == FEATURE_SCALE:
            weight = self.target.read("norm")
            return np.divide(1, weight, out=np.zeros_like(weight), where=weight != 0)
        tensor = self.target.read(role)
        return tensor if role != "head" or self.d2t is None else tensor[self.d2t]

    def _names(self) -> dict[str, str]:
        return dict(self.layout.names(self.spec, self.prefix))
