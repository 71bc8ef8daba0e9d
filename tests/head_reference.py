"""What draft heads compute, written in torch from the papers and apart from the builders: the whole sequence at once, no cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tiny_checkpoint import CONFIG
from torch import Tensor
from torch.nn.functional import silu, softmax

Floats = NDArray[np.float32]
HEADS, KV_HEADS, WIDTH = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]


class Reference:
    """One head: its tensors by their published names, and what it borrows of the target's."""

    def __init__(self, tensors: dict[str, NDArray[Any]], target: dict[str, NDArray[Any]]) -> None:
        self.tensors = {name: torch.from_numpy(np.asarray(tensor, np.float32)) for name, tensor in tensors.items()}
        self.final_norm = torch.from_numpy(target["model.norm.weight"])
        self.embedding = torch.from_numpy(target["model.embed_tokens.weight"])

    def eagle3(self, tokens: NDArray[np.int64], features: Floats, previous: Floats, *, norms: bool) -> tuple[Floats, Floats]:
        """(logits, hidden) of pairs: tokens [S], features [S,3H], previous [S,H]."""
        taps = torch.from_numpy(features).split(features.shape[1] // 3, dim=1)
        if norms:
            taps = tuple(self.norm(f"fc_norm.{index}.weight", tap) for index, tap in enumerate(taps))
        h = torch.cat(taps, dim=1) @ self["fc.weight"].T + torch.from_numpy(previous)
        token = self.norm("midlayer.input_layernorm.weight", self.embedding[torch.from_numpy(tokens)])
        h = h + self.attention("midlayer.", torch.cat([token, self.norm("midlayer.hidden_norm.weight", h)], dim=1))
        h = h + self.mlp("midlayer.", self.norm("midlayer.post_attention_layernorm.weight", h))
        out = self.norm("norm.weight", h)
        return (out @ self["lm_head.weight"].T).numpy(), (out if norms else h).numpy()

    def mtp(self, layout: str, tokens: NDArray[np.int64], features: Floats, previous: Floats) -> tuple[Floats, Floats]:
        embedded, h = self.embedding[torch.from_numpy(tokens)], torch.from_numpy(features + previous)
        head, plus_one = self.embedding, 0.0
        if layout == "deepseek":
            at = "model.layers.4."
            token, state, final = f"{at}enorm.weight", f"{at}hnorm.weight", f"{at}shared_head.norm.weight"
            embedded, head = self[f"{at}embed_tokens.weight"][torch.from_numpy(tokens)], self[f"{at}shared_head.head.weight"]
            x = torch.cat([self.norm(token, embedded), self.norm(state, h)], dim=1) @ self[f"{at}eh_proj.weight"].T
        elif layout == "mimo":
            at = "model.mtp_layers.0."
            final, h = f"{at}final_layernorm.weight", torch.from_numpy(features) / self.final_norm + torch.from_numpy(previous)
            states = self.norm(f"{at}hidden_layernorm.weight", h), self.norm(f"{at}token_layernorm.weight", embedded)
            x = torch.cat(states, dim=1) @ self[f"{at}input_proj.weight"].T
        else:
            at, final, plus_one = "mtp.layers.0.", "mtp.norm.weight", 1.0
            states = (
                self.norm("mtp.pre_fc_norm_embedding.weight", embedded, plus_one),
                self.norm("mtp.pre_fc_norm_hidden.weight", h, plus_one),
            )
            x = torch.cat(states, dim=1) @ self["mtp.fc.weight"].T
        x = x + self.attention(at, self.norm(f"{at}input_layernorm.weight", x, plus_one), plus_one)
        x = x + self.mlp(at, self.norm(f"{at}post_attention_layernorm.weight", x, plus_one))
        out = self.norm(final, x, plus_one)
        return (out @ head.T).numpy(), out.numpy()

    def medusa(self, features: Floats, heads: int, blocks: int) -> Floats:
        """Logits [S,K,V] of features [S,H]."""
        logits = []
        for head in range(heads):
            x = torch.from_numpy(features)
            for block in range(blocks):
                x = x + silu(x @ self[f"{head}.{block}.linear.weight"].T + self[f"{head}.{block}.linear.bias"])
            logits.append(x @ self.tensors.get(f"{head}.{blocks}.weight", self.embedding).T)
        return torch.stack(logits, dim=1).numpy()

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def norm(self, name: str, x: Tensor, plus: float = 0.0) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * (self[name] + plus)

    def mlp(self, at: str, x: Tensor) -> Tensor:
        gate, up, down = (self[f"{at}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def attention(self, at: str, x: Tensor, plus: float = 0.0) -> Tensor:
        """Causal attention of x [S,·], position s is s."""
        length, split = x.shape[0], {}
        for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            y = x @ self[f"{at}self_attn.{part}_proj.weight"].T + self.tensors.get(f"{at}self_attn.{part}_proj.bias", torch.zeros(1))
            y = y.view(length, heads, WIDTH).transpose(0, 1)
            if f"{at}self_attn.{part}_norm.weight" in self.tensors:
                y = self.norm(f"{at}self_attn.{part}_norm.weight", y, plus)
            split[part] = y if part == "v" else rotated(y)
        keys, values = (split[part].repeat_interleave(HEADS // KV_HEADS, dim=0) for part in "kv")
        scores = split["q"] @ keys.transpose(1, 2) / WIDTH**0.5
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
        return (softmax(scores, dim=-1) @ values).transpose(0, 1).reshape(length, -1) @ self[f"{at}self_attn.o_proj.weight"].T


def rotated(x: Tensor) -> Tensor:
    """x [heads,S,D] turned by its positions, the two halves of D as one complex number each."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] * CONFIG["rope_theta"] ** (-torch.arange(half) / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)
