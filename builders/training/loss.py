"""Cross entropy with a law, through an LM head that is not trained, without keeping a single row of logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 128
"""Rows of logits that exist at a time: 128 · 12,288 float32 are 6 MiB, which a cache may hold."""


class _HeadLoss(torch.autograd.Function):
    """Gradients are made in the forward pass: of the chunk that is there, and then nothing of it is needed any more."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, ids: Tensor, law: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(hidden)
        total = torch.zeros((), dtype=torch.float32)
        best = torch.empty(len(hidden), dtype=torch.int64)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = (hidden[part] @ head.T).float()
            wanted = logits.gather(1, ids[part])
            highest, best[part] = logits.max(-1)
            # In place from here on: one pass over the chunk costs as much as a tenth of the product that made it.
            sums = logits.sub_(highest[:, None]).exp_().sum(-1)
            partition = highest + sums.log()
            total += (weight[part] * (partition - (law[part] * wanted).sum(-1))).sum()
            # d/dlogits = softmax − law
            logits.mul_((weight[part] / sums)[:, None]).scatter_add_(1, ids[part], -law[part] * weight[part, None])
            gradient[part] = logits.to(head.dtype) @ head
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(best)
        return total, best

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0], None, None, None, None


def head_loss(hidden: Tensor, head: Tensor, ids: Tensor, law: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(Σ weight · cross entropy, the likeliest draft id of each row [R]).

    Args:
        hidden: [R,H] what the LM head is applied to.
        head: [V,H] its rows, of the same type.
        ids, law: [R,K] tokens of the law and their probabilities.
        weight: [R]
    """
    loss, best = _HeadLoss.apply(hidden, head, ids, law, weight)
    return loss, best
