"""What a decoder is, apart from its weights: the one thing that network code needs to know about a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding: half-split (non-interleaved) rotation of all ``2 · len(inverse_frequencies)`` head dimensions."""

    inverse_frequencies: tuple[float, ...]
    """Radians a position for each pair of dimensions, scaling (llama3, linear, …) already applied."""
    max_position: int | None = None
    """Positions for which these frequencies hold; None: any (dynamic scaling changes them past the trained length)."""


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts: in some layers a router sends each token to a few of many gated SiLU MLPs."""

    experts: int
    experts_per_token: int
    intermediate_size: int
    """Of one expert."""
    normalised: bool
    """Whether the shares of a token's chosen experts add up to one, or are their probabilities among all experts."""
    layers: tuple[int, ...]
    """Layers that have experts, ascending; the others have the decoder's own MLP."""

    def touched(self, tokens: int) -> float:
        """Experts of a layer whose weights a pass over ``tokens`` tokens reads, on average, when tokens choose evenly and apart:
        E·(1 − (1 − K/E)^t). So verifying a draft costs more than in a dense model, and the more the longer it is."""
        return self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens)


@dataclass(frozen=True)
class DecoderSpec:
    """A decoder-only transformer with RMS norms, rotary attention and gated SiLU MLPs."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    max_position: int
    """Tokens of a sequence that the checkpoint was made for."""
    tied_head: bool
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm over each query and key head before the rotation (Qwen3)."""
    sliding_window: int | None = None
    """Tokens that a query sees, itself included, the same in every layer."""
    moe: MoeSpec | None = None
    """None: every layer has one MLP of ``intermediate_size``."""
    first_layer: int = 0
    """Layers of the model that come before these ``num_layers``: not 0 for the upper part of a model that was cut in two."""
    layers_after: int = 0
    """Layers of the model that come after these: not 0 for the lower part."""

    @property
    def layers(self) -> range:
        """Those that this describes, by their numbers in the whole model."""
        return range(self.first_layer, self.first_layer + self.num_layers)

    def lower(self, layers: int) -> DecoderSpec:
        """The first ``layers`` layers alone, with the model's own norm and head after them."""
        return replace(self, num_layers=layers, layers_after=self.num_layers - layers)

    def upper(self, layers: int) -> DecoderSpec:
        """The layers after the first ``layers``. They have no embedding that a tied head could share."""
        return replace(self, num_layers=self.num_layers - layers, first_layer=layers, tied_head=False)

    def has_experts(self, layer: int) -> bool:
        """Whether layer ``layer`` is a mixture of experts."""
        return self.moe is not None and layer in self.moe.layers


class Weights(Protocol):
    """The tensors of a decoder by role, read one at a time; the caller owns what it gets.

    Roles: ``embedding`` [V,H], ``norm`` [H], ``head`` [V,H] (the embedding when tied), and for layer i under ``layers.i.``:
    ``attention_norm`` [H], ``q`` [heads·D,H], ``k`` and ``v`` [kv_heads·D,H], ``o`` [H,heads·D], ``mlp_norm`` [H],
    ``gate`` and ``up`` [I,H], ``down`` [H,I]; ``q_bias`` … ``down_bias`` where the spec says so; ``q_norm``, ``k_norm`` [D].
    A mixture of experts has ``router`` [E,H] in place of the MLP, and ``gate``, ``up``, ``down`` under ``experts.<e>.``.
    """

    def read(self, role: str) -> NDArray[np.float32]:
        """The tensor as contiguous float32.

        Raises:
            CheckpointError: it is missing, truncated or of another shape than the spec implies.
        """
        ...


def decoder_layer_shapes(spec: DecoderSpec, *, width: int | None = None, experts: bool = False) -> dict[str, tuple[int, ...]]:
    """Every role of one layer → the shape of its tensor, in reading order.

    ``width``: input of the attention, if not the hidden size. ``experts``: a layer that has them.
    """
    hidden, head = spec.hidden_size, spec.head_dim
    width = width or hidden
    queries, keys = spec.num_heads * head, spec.num_kv_heads * head
    layer: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "q": (queries, width),
        "k": (keys, width),
        "v": (keys, width),
        "o": (hidden, queries),
        "mlp_norm": (hidden,),
    }
    if spec.qkv_bias:
        layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if spec.out_bias:
        layer |= {"o_bias": (hidden,)}
    if spec.qk_norm:
        layer |= {"q_norm": (head,), "k_norm": (head,)}
    return layer | (_expert_shapes(spec) if experts else _mlp_shapes(hidden, spec.intermediate_size, biases=spec.mlp_bias))


def _mlp_shapes(hidden: int, inner: int, *, biases: bool = False) -> dict[str, tuple[int, ...]]:
    weights: dict[str, tuple[int, ...]] = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    return weights | ({"gate_bias": (inner,), "up_bias": (inner,), "down_bias": (hidden,)} if biases else {})


def _expert_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    moe = spec.moe
    assert moe is not None
    one = _mlp_shapes(spec.hidden_size, moe.intermediate_size)
    experts = {f"experts.{expert}.{matrix}": shape for expert in range(moe.experts) for matrix, shape in one.items()}
    return {"router": (moe.experts, spec.hidden_size), **experts}
