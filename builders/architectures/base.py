"""What a family of decoders is, and the reading of config keys that all of them share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specbuild.errors import CheckpointError, UnsupportedError

from ..decoder_spec import DecoderSpec, MoeSpec
from ..rope import rope_spec

Config = Mapping[str, Any]

DECODER_TENSORS: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
"""Role → Hugging Face tensor name; those of a layer follow ``model.layers.<i>.``. A family with experts adds ``router`` and, with
``{expert}`` for the number, ``expert_gate``, ``expert_up`` and ``expert_down``."""


@dataclass(frozen=True)
class Family:
    """One family: how its config becomes a spec and what its tensors are called."""

    model_type: str
    spec: Callable[[Config], DecoderSpec]
    tensors: Mapping[str, str] = field(default_factory=lambda: DECODER_TENSORS)


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "clip_qkv": (),
    "num_local_experts": (0,),
    "num_experts": (0,),
    "n_shared_experts": (0,),
    "num_shared_experts": (0,),
    "shared_expert_intermediate_size": (0,),
    "attention_chunk_size": (),
    "no_rope_layers": (),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}
"""Keys that change the mathematics → the values that are built. Absent or null is always fine."""
EXPERT_COUNTS = ("num_local_experts", "num_experts")
"""Keys that count experts: families without them refuse either, those with them are written with one or the other."""
MAX_INTEGER = 2**31 - 1
MAX_HEAD_DIM = 4096


def decoder(
    config: Config,
    *,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    sliding_window: int | None = None,
    moe: MoeSpec | None = None,
) -> DecoderSpec:
    """The spec of an RMS-norm, rotary, SiLU-gated decoder; the arguments are what the family decided, the rest is read from ``config``.

    Raises:
        UnsupportedError: a key that changes the mathematics has a value that is not built.
        CheckpointError: a needed key is absent or impossible.
    """
    refuse_other_mathematics(config, built=EXPERT_COUNTS if moe else ())
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    kv_heads = integer(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"config: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}; correct config.json"
        )
    width = integer(config, "head_dim", head_dim or hidden // heads)
    if width % 2 or width > MAX_HEAD_DIM:
        raise UnsupportedError(f"config: head_dim {width} is not supported; a rotary embedding needs an even one of at most {MAX_HEAD_DIM}")
    max_position = integer(config, "max_position_embeddings")
    return DecoderSpec(
        family=str(config["model_type"]),
        vocab_size=integer(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=integer(config, "intermediate_size"),
        num_layers=integer(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        norm_eps=_epsilon(config),
        rope=rope_spec(config, width),
        max_position=max_position,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        sliding_window=sliding_window,
        moe=moe,
    )


def mixture(config: Config, *, intermediate_size: int, normalised: bool, layers: tuple[int, ...]) -> MoeSpec:
    """The experts that ``config`` counts; the arguments are what the family decided.

    Raises:
        CheckpointError: a count is absent or impossible, or a token chooses more experts than there are.
    """
    counted = next((key for key in EXPERT_COUNTS if config.get(key) is not None), EXPERT_COUNTS[0])
    experts, chosen = integer(config, counted), integer(config, "num_experts_per_tok")
    if chosen > experts:
        raise CheckpointError(f"config: num_experts_per_tok {chosen} is more than the {experts} experts of {counted}; correct config.json")
    return MoeSpec(experts, chosen, intermediate_size, normalised, layers)


def integer(config: Config, key: str, default: int | None = None) -> int:
    """A positive whole number; ``default`` when it is absent or null.

    Raises:
        CheckpointError: it is absent and has no default, or is something else.
    """
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INTEGER:
        raise CheckpointError(f"config: {key!r} must be a whole number of 1 to {MAX_INTEGER} (seen: {value!r}); correct config.json")
    return value


def _epsilon(config: Config) -> float:
    value = config.get("rms_norm_eps")
    value = 1e-6 if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value >= 0 and math.isfinite(value)):
        raise CheckpointError(f"config: 'rms_norm_eps' must be a finite number, not below 0 (seen: {value!r}); correct config.json")
    return float(value)


def refuse_other_mathematics(config: Config, *, built: tuple[str, ...] = ()) -> None:
    """Raise UnsupportedError for a key of NEUTRAL with another value, and for weights quantised in a format that is not read.

    ``built``: keys of NEUTRAL that the family builds with any value.
    """
    for key, neutral in NEUTRAL.items():
        value = config.get(key)
        if value is not None and key not in built and value not in neutral:
            supported = " or ".join(repr(item) for item in neutral) or "leaving it out"
            raise UnsupportedError(
                f"config: {key} {value!r} is not supported by family {config.get('model_type')!r}; supported: {supported}"
            )
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedError(
            f"config: quantization_config of kind {method!r} is not supported; "
            "use the unquantised checkpoint (float32, float16 or bfloat16 safetensors) or a .gguf file"
        )


def layer_window(config: Config) -> int | None:
    """The window of a family that may use it in some layers only: ``layer_types``, else ``use_sliding_window`` and ``max_window_layers``.

    Layers from ``max_window_layers`` on slide. The defaults are those of transformers' Qwen2 and Qwen3.

    Raises:
        UnsupportedError: some layers slide and others do not.
    """
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    layers = integer(config, "num_hidden_layers")
    full = config.get("max_window_layers", 28) if window else layers
    if not isinstance(full, int):
        raise CheckpointError(f"config: 'max_window_layers' must be a whole number (seen: {full!r}); correct config.json")
    implied = ["full_attention"] * (full > 0) + ["sliding_attention"] * (full < layers)
    return uniform_window(config.get("layer_types") or implied, window)


def uniform_window(layer_types: Any, window: Any) -> int | None:
    """``window`` when every layer slides, None when every layer sees all; ``layer_types`` holds the kinds that occur.

    Raises:
        UnsupportedError: the layers differ, are of another kind, or slide without a window.
        CheckpointError: the kinds are no list of words, or the window no whole number above 0.
    """
    if not isinstance(layer_types, list) or not all(isinstance(kind, str) for kind in layer_types):
        raise CheckpointError(f"config: 'layer_types' must be a list of words (seen: {layer_types!r}); correct config.json")
    kinds = sorted(set(layer_types))
    if kinds == ["full_attention"]:
        return None
    if kinds == ["sliding_attention"] and window:
        return integer({"sliding_window": window}, "sliding_window")
    raise UnsupportedError(
        f"config: layer_types has {', '.join(kinds)} with sliding_window {window!r}; "
        "supported: all layers 'full_attention', or all 'sliding_attention' with one window"
    )
