"""Rotary frequencies against transformers' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbuild.builders.rope import rope_spec
from specbuild.errors import CheckpointError, UnsupportedError

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def _config(theta: float, head_dim: int, scaling: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        num_hidden_layers=1,
        max_position_embeddings=16384,
        rope_parameters={"rope_theta": theta, **scaling},
    )


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
@pytest.mark.parametrize(
    "scaling",
    [{"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, LLAMA3, {"rope_type": "dynamic", "factor": 2.0}],
    ids=lambda scaling: scaling["rope_type"],
)
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any], theta: float, head_dim: int) -> None:
    config = _config(theta, head_dim, scaling)
    expected = LlamaRotaryEmbedding(config).inv_freq.numpy()
    spec = rope_spec(config.to_dict(), head_dim)
    np.testing.assert_allclose(spec.inverse_frequencies, expected, rtol=5e-7, atol=0)  # last bits: torch takes reciprocals
    assert spec.max_position == (16384 if scaling["rope_type"] == "dynamic" else None)


def test_old_and_new_config_keys_mean_the_same() -> None:
    new = {"max_position_embeddings": 131072, "rope_parameters": {"rope_theta": 5e5, **LLAMA3}}
    old = {"max_position_embeddings": 131072, "rope_theta": 5e5, "rope_scaling": LLAMA3}
    older = {**old, "rope_scaling": {**LLAMA3, "rope_type": None, "type": "llama3"}}
    assert rope_spec(new, 64) == rope_spec(old, 64) == rope_spec(older, 64)


def test_without_any_rope_key_theta_is_ten_thousand() -> None:
    assert rope_spec({}, 4).inverse_frequencies == pytest.approx((1.0, 0.01))


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    plain = rope_spec({"rope_theta": 5e5}, 128).inverse_frequencies
    scaled = rope_spec({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 128).inverse_frequencies
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(plain[-1] / 8)


def test_frequency_factors_divide() -> None:
    config = {"rope_theta": 1e4, "rope_scaling": {"rope_type": "frequency_factors", "factors": [1.0, 8.0]}}
    assert rope_spec(config, 4).inverse_frequencies == pytest.approx((1.0, 0.01 / 8))


@pytest.mark.parametrize("kind", ["yarn", "longrope", "linaer"])
def test_other_types_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=f"rope_type '{kind}' is not supported"):
        rope_spec({"rope_scaling": {"rope_type": kind, "factor": 2.0}}, 64)


def test_partial_rotation_and_rotation_by_layer_type_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"partial_rotary_factor 0\.5"):
        rope_spec({"partial_rotary_factor": 0.5}, 64)
    with pytest.raises(UnsupportedError, match="differ by layer type \\(full_attention\\)"):
        rope_spec({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, 64)


@pytest.mark.parametrize("theta", [-1.0, float("nan"), float("inf"), True, "1e4"])
def test_an_impossible_theta_is_refused(theta: Any) -> None:
    with pytest.raises(CheckpointError, match="needs a positive, finite 'rope_theta'"):
        rope_spec({"rope_theta": theta}, 64)


@pytest.mark.parametrize(
    ("factors", "sentence"), [("x", "must have 4 factors"), ([1.0], "must have 4 factors"), ([1.0, 0, 1, 1], "seen: 0")]
)
def test_impossible_factors_are_refused(factors: Any, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        rope_spec({"rope_scaling": {"rope_type": "frequency_factors", "factors": factors}}, 8)


def test_a_scaling_without_its_number_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'linear' needs a positive, finite 'factor'"):
        rope_spec({"rope_scaling": {"rope_type": "linear"}}, 64)
