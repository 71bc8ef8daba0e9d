"""Draft heads in torch: the mathematics of ``builders/network/{eagle3,mtp,medusa}.py``, over many positions at once and with gradients.

Parameters are a dictionary by the roles of ``head_spec.head_shapes``; what a head shares with its target (embedding, LM head) is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..head_spec import LayerHead, MedusaHead

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rows:
    """R (text, position) pairs that are computed together, text by text."""

    texts: Tensor
    """[R] ascending."""
    positions: Tensor
    """[R]"""


@dataclass(frozen=True)
class Cache:
    """Rotated keys, and values, of the pairs that the target has read: [B,KV,T,D] each."""

    keys: Tensor
    values: Tensor


class LayerNetwork:
    """An autoregressive head. Pair t of a text: features of position t, token t + 1."""

    def __init__(self, spec: LayerHead, parameters: Parameters, embedding: Tensor, eps: float) -> None:
        """``embedding`` [V,H]; ``eps`` of all norms."""
        self.spec, self.parameters, self._embedding, self._eps = spec, parameters, embedding, eps
        layer = spec.layer
        self._heads, self._kv_heads, self._width = layer.num_heads, layer.num_kv_heads, layer.head_dim
        angle = torch.arange(layer.max_position)[:, None].float() * torch.tensor(layer.rope.inverse_frequencies)
        self._turns = torch.stack([angle.cos(), angle.sin()], -1)
        """[positions, D/2, 2]"""

    def fuse(self, features: Tensor) -> Tensor:
        """Features [..,H·taps] → what stands for them [..,H], the same kind of thing as ``hidden``."""
        if self.spec.role == "mtp":
            return features
        if self.spec.feature_norms:
            parts = features.unflatten(-1, (len(self.spec.taps), -1)).unbind(-2)
            features = torch.cat([self._norm(f"feature_norms.{index}", part) for index, part in enumerate(parts)], -1)
        return self._linear("fc", features)

    def enter(self, h: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(residual stream [..,H], what attention projects [..,width]) of h [..,H] beside tokens [..]."""
        both = torch.cat([self._norm("embedding_norm", self._embedding[tokens].float()), self._norm("hidden_norm", h)], -1)
        if self.spec.role == "eagle3":
            return h, both
        stream = self._linear("eh_proj", both).float()
        return stream, self._norm("layers.0.attention_norm", stream)

    def cached(self, x: Tensor, positions: Tensor) -> Cache:
        """Keys and values of x [B,T,width] at positions [T]."""
        keys, values = self.keys_values(x, positions)
        return Cache(keys.transpose(1, 2), values.transpose(1, 2))

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[..,KV,D] each, the keys rotated."""
        keys = self._linear("layers.0.k", x).unflatten(-1, (self._kv_heads, self._width))
        return self._rotated(keys, positions), self._linear("layers.0.v", x).unflatten(-1, (self._kv_heads, self._width))

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """[R,heads,D] of x [R,width], rotated and scaled."""
        queries = self._linear("layers.0.q", x).unflatten(-1, (self._heads, self._width))
        return self._rotated(queries, positions) * self._width**-0.5

    def attend(self, queries: Tensor, rows: Rows, last: Tensor, cache: Cache, own: list[tuple[Tensor, Tensor]]) -> Tensor:
        """[R,heads·D]: each row over its text's cache up to position ``last`` [R], and over its own keys and values [R,KV,D]."""
        batch, kv_heads, length, width = cache.keys.shape
        group = self._heads // kv_heads
        counts = torch.bincount(rows.texts, minlength=batch)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(rows.texts)) - starts[rows.texts]
        most = int(counts.max())
        grid = queries.new_zeros(batch, most, kv_heads, group, width).index_put(
            (rows.texts, place), queries.unflatten(1, (kv_heads, group))
        )
        ends = last.new_zeros(batch, most).index_put((rows.texts, place), last)
        scores = torch.einsum("bqkgd,bktd->bqkgt", grid, cache.keys).float()
        seen = torch.arange(length) <= ends[..., None]
        scores = scores.masked_fill(~seen[:, :, None, None], -torch.inf)
        if own:
            grouped = queries.unflatten(1, (kv_heads, group))
            mine = torch.stack([(grouped * keys[:, :, None]).sum(-1) for keys, _ in own], -1).float()
            padded = mine.new_zeros(batch, most, kv_heads, group, len(own)).index_put((rows.texts, place), mine)
            scores = torch.cat([scores, padded], -1)
        weights = torch.softmax(scores, -1).to(cache.values.dtype)
        mixed = torch.einsum("bqkgt,bktd->bqkgd", weights[..., :length], cache.values)[rows.texts, place]
        for index, (_, values) in enumerate(own):
            mixed = mixed + weights[..., length + index][rows.texts, place][..., None] * values[:, :, None]
        return mixed.flatten(1)

    def leave(self, stream: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """(``hidden`` that the head is fed with next, what the LM head is applied to) [R,H] each."""
        stream = stream + self._linear("layers.0.o", mixed)
        inner = self._norm("layers.0.mlp_norm", stream)
        gated = torch.nn.functional.silu(self._linear("layers.0.gate", inner)) * self._linear("layers.0.up", inner)
        stream = stream + self._linear("layers.0.down", gated)
        normed = self._norm("norm", stream)
        return (normed if self.spec.normed_hidden or self.spec.role == "mtp" else stream), normed

    def _linear(self, role: str, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.parameters[role])

    def _norm(self, role: str, x: Tensor) -> Tensor:
        normed: Tensor = _Norm.apply(x.float(), self.parameters[role], self._eps)
        return normed

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [..,heads,D] rotated by positions [..], halves as pairs."""
        cos, sin = self._turns[positions][..., None, :, :].unbind(-1)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class _Norm(torch.autograd.Function):
    """RMS norm. Written out, its backward pass takes half the passes over memory that autograd's would, and keeps one array."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        scaled = x * inverse
        ctx.save_for_backward(scaled, inverse, weight)
        return scaled * weight

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        scaled, inverse, weight = ctx.saved_tensors
        (gradient,) = upstream
        weighted = gradient * weight
        along = (weighted * scaled).mean(-1, keepdim=True)
        return (weighted - scaled * along).mul_(inverse), (gradient * scaled).flatten(0, -2).sum(0), None


class MedusaNetwork:
    """Medusa heads: residual blocks on the last hidden state."""

    def __init__(self, spec: MedusaHead, parameters: Parameters) -> None:
        self.spec, self.parameters = spec, parameters

    def streams(self, features: Tensor) -> list[Tensor]:
        """What the LM head is applied to, of each head: [R,H] of features [R,H]."""
        found = []
        for head in range(self.spec.predictions):
            x = features
            for block in range(self.spec.blocks):
                role = f"blocks.{head}.{block}"
                x = x + torch.nn.functional.silu(torch.nn.functional.linear(x, self.parameters[role], self.parameters[f"{role}_bias"]))
            found.append(x)
        return found
