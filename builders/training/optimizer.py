"""Muon for matrices (Jordan et al. 2024), Adam for the rest; both start gently and end at a rate of zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration that pushes all singular values towards 1."""
MOMENTUM = 0.95
ADAM = (0.9, 0.95)
"""Decay of the means of gradients and of their squares."""
WARM_UP = 30
"""Steps until the full rate."""


class Optimizer:
    """Steps over named parameters. Its state is plain tensors: what ``state`` gives, ``restore`` takes."""

    def __init__(self, parameters: Mapping[str, Tensor], *, steps: int, matrix_rate: float, vector_rate: float, clip: float = 1.0) -> None:
        self._parameters, self._steps, self._clip = parameters, steps, clip
        self._matrix_rate, self._vector_rate = matrix_rate, vector_rate
        self._mean = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self._square = {name: torch.zeros_like(value) for name, value in parameters.items() if value.ndim < 2}
        self.done = 0

    @torch.no_grad()
    def step(self) -> None:
        """One step by the gradients that are there; they are cleared."""
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._clip)
        share = min(1.0, (self.done + 1) / WARM_UP) * max(0.0, 1.0 - self.done / self._steps)
        for name, value in self._parameters.items():
            gradient, value.grad = value.grad, None
            if gradient is None:  # nothing of this batch came by
                continue
            if value.ndim == 2:
                momentum = self._mean[name].lerp_(gradient, 1 - MOMENTUM)
                rate = share * self._matrix_rate * max(1.0, value.shape[0] / value.shape[1]) ** 0.5
                value.sub_(rate * orthogonal(gradient.lerp(momentum, MOMENTUM)))
            else:
                value.sub_(share * self._vector_rate * self._adam(name, gradient))
        self.done += 1

    def state(self) -> dict[str, Any]:
        """All that a later ``restore`` needs."""
        return {"done": self.done, "mean": self._mean, "square": self._square}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self.done, self._mean, self._square = state["done"], state["mean"], state["square"]

    def _adam(self, name: str, gradient: Tensor) -> Tensor:
        """The update of Adam (1412.6980), both means corrected for their start at zero."""
        first, second = ADAM
        mean = self._mean[name].lerp_(gradient, 1 - first) / (1 - first ** (self.done + 1))
        square = self._square[name].lerp_(gradient.square(), 1 - second) / (1 - second ** (self.done + 1))
        return mean / (square.sqrt() + 1e-8)


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest matrix whose singular values are all 1."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return (x.T if tall else x).float()
