"""Cross entropy with a law, through an LM head that is not trained, without keeping a single row of logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 256
"""Rows of logits that exist at a time: 256 · 12,288 float32 are 12 MiB."""


class _HeadLoss(torch.autograd.Function):
    """Gradients are made in the forward pass: of the chunk that is there, and then nothing of it is needed any more."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, ids: Tensor, law: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(hidden, dtype=torch.float32)
        total = torch.zeros((), dtype=torch.float32)
        best = torch.empty(len(hidden), dtype=torch.int64)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = (hidden[part].to(head.dtype) @ head.T).float()
            best[part] = logits.argmax(-1)
            partition = torch.logsumexp(logits, -1, keepdim=True)
            total += (weight[part] * (partition[:, 0] - (law[part] * logits.gather(1, ids[part])).sum(-1))).sum()
            # d/dlogits = softmax − law
            logits.sub_(partition).exp_().scatter_add_(1, ids[part], -law[part]).mul_(weight[part, None])
            gradient[part] = (logits.to(head.dtype) @ head).float()
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
        head: [V,H] its rows, in the type that products are to be made in.
        ids, law: [R,K] tokens of the law and their probabilities.
        weight: [R]
    """
    loss, best = _HeadLoss.apply(hidden, head, ids, law, weight)
    return loss, best
