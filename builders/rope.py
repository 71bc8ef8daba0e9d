"""Inverse frequencies of rotary embeddings (2104.09864), by the definitions that transformers gives each ``rope_type``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.errors import CheckpointError, UnsupportedError, close_match

from .decoder_spec import RopeSpec

DEFAULT_THETA = 10000.0
FREQUENCY_FACTORS = "frequency_factors"
"""Rope type of a GGUF file that stores what each frequency is divided by, instead of the rule that gave it."""

Frequencies = NDArray[np.float32]
Config = Mapping[str, Any]


def rope_spec(config: Config, head_dim: int) -> RopeSpec:
    """The rotation that ``config`` describes, by the keys of transformers 5 (``rope_parameters``) or older ones (``rope_scaling``).

    Raises:
        UnsupportedError: a rope type, or a use of it, that is not built.
        CheckpointError: a scaled type lacks one of its numbers.
    """
    parameters = rope_parameters(config)
    kind = parameters["rope_type"]
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise UnsupportedError(f"rope_type {kind!r} is not supported.{close_match(str(kind), SCALINGS)}")
    if parameters.get("partial_rotary_factor", 1) != 1:
        raise UnsupportedError(
            f"partial_rotary_factor {parameters['partial_rotary_factor']!r} is not supported; only whole heads are rotated (1.0)"
        )
    # Exponents and powers rounded to float32, as transformers has them: more digits would be less parity.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.power(_number(parameters, "rope_theta"), exponents, dtype=np.float64)
    plain = np.float32(1) / powers.astype(np.float32)
    scaled = SCALINGS[kind](plain, parameters).astype(np.float32)
    limit = int(config["max_position_embeddings"]) if kind == "dynamic" else None
    return RopeSpec(tuple(float(frequency) for frequency in scaled), limit)


def rope_parameters(config: Config) -> dict[str, Any]:
    """The rope keys of either generation of transformers as one mapping that has ``rope_type`` and ``rope_theta``."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config: the rope parameters must be an object (seen: {given!r}); correct config.json")
    found = dict(given)
    nested = sorted(key for key, value in found.items() if isinstance(value, Mapping))
    if nested:
        raise UnsupportedError(f"rope_parameters differ by layer type ({', '.join(nested)}); one rotation for all layers is supported")
    found["rope_type"] = found.get("rope_type") or found.get("type") or "default"
    found["rope_theta"] = found.get("rope_theta") or config.get("rope_theta") or DEFAULT_THETA
    found.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 1)
    trained = config.get("original_max_position_embeddings") or found.get("original_max_position_embeddings")
    found["original_max_position_embeddings"] = trained or config.get("max_position_embeddings")
    return found


def _unscaled(plain: Frequencies, parameters: Config) -> Frequencies:
    """Types ``default`` and, up to the trained length, ``dynamic`` (NTK scaling has no effect before it)."""
    return plain


def _linear(plain: Frequencies, parameters: Config) -> Frequencies:
    """Position interpolation (2306.15595): every frequency is divided by the factor."""
    return plain / np.float32(_number(parameters, "factor"))


def _llama3(plain: Frequencies, parameters: Config) -> Frequencies:
    """Llama 3.1's rule: long waves are divided by the factor, short ones are kept, those between are blended."""
    factor, low, high, trained = (
        np.float32(_number(parameters, key))
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    wavelength = np.float32(2 * math.pi) / plain
    # 0 at trained/wavelength = low (fully divided), 1 at high (kept).
    share = (trained / wavelength - low) / (high - low)
    blended = (1 - share) * plain / factor + share * plain
    divided = np.where(wavelength > trained / low, plain / factor, plain)
    between = (wavelength <= trained / low) & (wavelength >= trained / high)
    result: Frequencies = np.where(between, blended, divided)
    return result


def _factors(plain: Frequencies, parameters: Config) -> Frequencies:
    factors = parameters.get("factors")
    if not isinstance(factors, list) or len(factors) != plain.size:
        raise CheckpointError(f"rope_freqs.weight must have {plain.size} factors, half the head dimension (seen: {factors!r})")
    divisors = np.array([_number({**parameters, "factor": factor}, "factor") for factor in factors], np.float32)
    result: Frequencies = plain / divisors
    return result


def _number(parameters: Config, key: str) -> float:
    value = parameters.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(
            f"rope_type {parameters['rope_type']!r} needs a positive, finite {key!r} (seen: {value!r}); correct config.json"
        )
    return float(value)


SCALINGS: Mapping[str, Callable[[Frequencies, Config], Frequencies]] = {
    "default": _unscaled,
    "dynamic": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    FREQUENCY_FACTORS: _factors,
}
