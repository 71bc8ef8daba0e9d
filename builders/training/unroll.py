"""The training-time test (EAGLE-3, 2503.01840): a head learns on its own states, as many steps ahead as it will draft.

From a base, a position t whose features the target has given, step j drafts the token t + j + 2 at position t + j:

    step 0   features of t, token t + 1         sees the pairs up to t, all by features
    step j   hidden of step j − 1, token t+j+1  sees those and the steps 1 … j of its own base

Tokens are the text's own: a draft is only gone on with while it is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .batches import Batch
from .network import LayerNetwork, MedusaNetwork, Rows


@dataclass(frozen=True)
class Step:
    """What one step asks of the LM head, for those bases that take part."""

    rows: Rows
    """The bases."""
    out: Tensor
    """[R,H]"""
    targets: Tensor
    """[R] position whose token is drafted; the law of the position before it is to be learned."""


def bases(batch: Batch, ahead: int = 2) -> Rows:
    """Every position whose draft, ``ahead`` places on, is to be learned."""
    texts, targets = batch.learned[:, ahead:].nonzero(as_tuple=True)
    return Rows(texts, targets)


def unroll(network: LayerNetwork, batch: Batch, features: Tensor, start: Rows, keep: list[Tensor]) -> Iterator[Step]:
    """The steps from the bases ``start``.

    Args:
        features: [B,T,H·taps] those that the head reads.
        keep: For each step after the first, [R] bool over the bases of ``start``: which go on. Each must be within the one before.
    """
    length = batch.tokens.shape[1]
    fused = network.fuse(features[:, :-1])
    streams, entered = network.enter(fused, batch.tokens[:, 1:])
    cache = network.cached(entered, torch.arange(length - 1))
    rows, alive = start, torch.arange(len(start.texts))
    stream, x = streams[rows.texts, rows.positions], entered[rows.texts, rows.positions]
    own: list[tuple[Tensor, Tensor]] = []
    for step in range(len(keep) + 1):
        at = rows.positions + step
        if step:
            own.append(network.keys_values(x, at))
        mixed = network.attend(network.queries(x, at), rows, rows.positions, cache, own)
        hidden, out = network.leave(stream, mixed)
        yield Step(rows, out, at + 2)
        if step == len(keep):
            return
        inside = at + 3 < length
        going = keep[step][alive] & inside & batch.learned[rows.texts, (at + 3).clamp(max=length - 1)]
        alive, rows = alive[going], Rows(rows.texts[going], rows.positions[going])
        if not len(alive):
            return
        own = [(keys[going], values[going]) for keys, values in own]
        stream, x = network.enter(hidden[going], batch.tokens[rows.texts, rows.positions + step + 2])


def medusa_steps(network: MedusaNetwork, batch: Batch, features: Tensor, start: Rows) -> Iterator[Step]:
    """One step a head: head k drafts the token k + 2 places after its base."""
    length = batch.tokens.shape[1]
    for ahead, out in enumerate(network.streams(features[start.texts, start.positions]), 2):
        targets = start.positions + ahead
        inside = (targets < length) & batch.learned[start.texts, targets.clamp(max=length - 1)]
        yield Step(Rows(start.texts[inside], start.positions[inside]), out[inside], targets[inside])
