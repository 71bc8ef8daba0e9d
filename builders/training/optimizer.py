"""Adam, its rate rising at first and then falling to zero, its state as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

BETAS = (0.9, 0.95)
"""Decay of the means of gradients and of their squares."""
WARM_UP = 20
"""Steps until the full rate."""
CLIP = 1.0
"""Norm that a gradient is cut down to."""


class Optimizer:
    """Steps over named parameters. What ``state`` gives, ``restore`` takes."""

    def __init__(self, parameters: Mapping[str, Tensor], *, steps: int, rate: float) -> None:
        self._parameters, self._steps, self._rate = list(parameters.values()), steps, rate
        self._adam = torch.optim.Adam(self._parameters, lr=rate, betas=BETAS)
        self.done = 0

    def step(self) -> None:
        """One step by the gradients that are there; they are cleared."""
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP)
        for group in self._adam.param_groups:
            group["lr"] = self._rate * min(1.0, (self.done + 1) / WARM_UP) * max(0.0, 1.0 - self.done / self._steps)
        self._adam.step()
        self._adam.zero_grad()
        self.done += 1

    def state(self) -> dict[str, Any]:
        """All that a later ``restore`` needs."""
        return {"done": self.done, "adam": self._adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self.done = state["done"]
        self._adam.load_state_dict(state["adam"])
