"""What a draft head is, apart from its weights: as ``decoder_spec`` for the few layers that draft on a target's hidden states."""

from __future__ import annotations

from dataclasses import dataclass

from specbuild.recipe import TrainedRole

from .decoder_spec import DecoderSpec, adapter_shapes, decoder_layer_shapes

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class HeadSpec:
    """What all heads have in common. H is the hidden size, the target's own."""

    role: TrainedRole
    hidden_size: int
    vocab_size: int
    """Tokens that its logits are over: the draft vocabulary, which may be a part of the target's."""
    taps: tuple[int, ...]
    """Hidden states of the target that are its features, ascending, numbered as ``EngineEntry.taps``."""


@dataclass(frozen=True)
class LayerHead(HeadSpec):
    """An autoregressive head (``eagle3``, ``mtp``): features and a token's embedding, one decoder layer, an LM head."""

    layer: DecoderSpec
    """The layer; its vocabulary is that of the embedding, the target's. ``tied_head``: head and embedding are the target's, one matrix."""
    feature_norms: bool = False
    """EAGLE 3.1: each tap is RMS-normalised with a weight of its own before they are fused."""
    normed_hidden: bool = True
    """What the head feeds itself with is taken after its final norm (MTP, EAGLE 3.1) or before it (EAGLE-3)."""
    stream_features: bool = False
    """``mtp``: the features are wanted as they were before the target's final norm. Divided by its weight they are that but for a factor a
    token, which ``hidden_norm`` takes out."""

    @property
    def attention_width(self) -> int:
        """What queries, keys and values are projected from: in EAGLE-3 embedding and features side by side."""
        return self.hidden_size * (2 if self.role == "eagle3" else 1)


@dataclass(frozen=True)
class MedusaHead(HeadSpec):
    """K heads on the last hidden state, each a few residual blocks x + silu(linear(x)) and an LM head."""

    predictions: int
    """K."""
    blocks: int
    """Residual blocks of each."""
    shared_head: bool
    """One LM head for all K, the target's; else each has its own."""


@dataclass(frozen=True)
class ExitAdapter(HeadSpec):
    """A norm and a residual block y + down(silu(up(y))) between the target's first layers and its LM head. No engine of its own: it is
    compiled into the lower part of the target. The tap is what leaves those layers."""

    inner_size: int
    """Rows of ``up``."""
    target_layers: int
    """All that the target has."""


def head_shapes(spec: HeadSpec) -> Shapes:
    """Every role of a head's tensors → its shape, in reading order.

    ``embedding`` [V,H] of the whole vocabulary, ``head`` [V_draft,H] and those of ``layers.0`` are as in a decoder. EAGLE-3 has ``fc``
    [H,H·taps], ``feature_norms.i`` [H], and ``embedding_norm`` and ``hidden_norm`` [H] in the place of an attention norm; MTP has these two
    and ``eh_proj`` [H,2H], which reads embedding and features in this order, perhaps ``feature_scale`` [H] to multiply features by. Medusa
    has ``blocks.k.l`` [H,H], ``blocks.k.l_bias`` [H] and ``heads.k`` [V_draft,H]. An adapter has ``norm`` [H], ``adapter.up`` [A,H] and
    ``adapter.down`` [H,A].
    """
    if isinstance(spec, MedusaHead):
        return _medusa(spec)
    if isinstance(spec, ExitAdapter):
        return {"norm": (spec.hidden_size,), **adapter_shapes(spec.hidden_size, spec.inner_size)}
    assert isinstance(spec, LayerHead)
    hidden, layer = spec.hidden_size, decoder_layer_shapes(spec.layer, width=spec.attention_width)
    shapes: Shapes = {"embedding": (spec.layer.vocab_size, hidden), "embedding_norm": (hidden,), "hidden_norm": (hidden,)}
    if spec.role == "eagle3":
        del layer["attention_norm"]
        shapes |= {f"feature_norms.{index}": (hidden,) for index in range(len(spec.taps) if spec.feature_norms else 0)}
        shapes["fc"] = (hidden, hidden * len(spec.taps))
    else:
        shapes |= {"feature_scale": (hidden,)} if spec.stream_features else {}
        shapes["eh_proj"] = (hidden, 2 * hidden)
    shapes |= {f"layers.0.{part}": shape for part, shape in layer.items()}
    return shapes | {"norm": (hidden,), "head": (spec.vocab_size, hidden)}


def _medusa(spec: MedusaHead) -> Shapes:
    hidden, shapes = spec.hidden_size, Shapes()
    for index in range(spec.predictions):
        for block in range(spec.blocks):
            shapes |= {f"blocks.{index}.{block}": (hidden, hidden), f"blocks.{index}.{block}_bias": (hidden,)}
        if not spec.shared_head:
            shapes[f"heads.{index}"] = (spec.vocab_size, hidden)
    if spec.shared_head:
        shapes["head"] = (spec.vocab_size, hidden)
    return shapes
