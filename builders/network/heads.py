"""The graph of a draft head, whichever it is."""

from __future__ import annotations

import onnx_ir as ir

from ..decoder_spec import Weights
from ..head_spec import HeadSpec, LayerHead, MedusaHead
from .eagle3 import eagle3
from .medusa import medusa
from .mtp import mtp


def head(spec: HeadSpec, weights: Weights, *, capacity: int | None, positions: int) -> ir.Model:
    """The float32 graph of ``spec``; arguments as in ``decoder``."""
    if isinstance(spec, MedusaHead):
        return medusa(spec, weights)
    assert isinstance(spec, LayerHead)
    network = eagle3 if spec.role == "eagle3" else mtp
    return network(spec, weights, capacity=capacity, positions=positions)
