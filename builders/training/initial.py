"""A head's first weights: its layer is the target's last one, silenced, so that training starts from what the features say."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..decoder_spec import Weights
from ..head_spec import HeadSpec, MedusaHead, head_shapes

QUIET = 0.05
"""Factor of the two matrices that write into the residual stream: unscaled, the loss starts ten times as high."""
SHARED = ("embedding", "head")


def initial(spec: HeadSpec, target: Weights, target_layers: int, *, seed: int) -> dict[str, Tensor]:
    """Every tensor that is trained, by role; embedding and LM head stay the target's."""
    random = np.random.default_rng([seed, 0])
    found = {}
    for role, shape in head_shapes(spec).items():
        if role not in SHARED:
            value = _medusa(role, shape) if isinstance(spec, MedusaHead) else _layer(role, shape, target, target_layers, random)
            assert value.shape == shape, role
            found[role] = torch.from_numpy(np.ascontiguousarray(value, np.float32)).requires_grad_()
    return found


def _medusa(role: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Zeros: a residual block that leaves everything as it is, as Medusa's own code starts."""
    return np.zeros(shape, np.float32)


def _layer(role: str, shape: tuple[int, ...], target: Weights, layers: int, random: np.random.Generator) -> NDArray[np.float32]:
    part = role.rpartition(".")[2]
    if role == "norm":
        return target.read("norm")
    if role in ("fc", "eh_proj"):
        # The last tap, or the two halves, as they are: the others come in as they prove useful.
        hidden = shape[0]
        value = (0.02 * random.standard_normal(shape)).astype(np.float32)
        value[:, -hidden:] += np.eye(hidden, dtype=np.float32)
        return value
    if not role.startswith("layers.0."):
        return np.ones(shape, np.float32)
    last = target.read(f"layers.{layers - 1}.{part}")
    if part in ("o", "down"):
        return last * np.float32(QUIET)
    if last.ndim == 2 and last.shape[1] < shape[1]:
        # EAGLE-3 attends beside the embedding, which is what the first layer reads.
        return np.concatenate([target.read(f"layers.0.{part}"), last], axis=1)
    return last
