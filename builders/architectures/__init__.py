"""The families that can be built, one module each: a module of this folder that has a ``FAMILY`` is one."""

from __future__ import annotations

import importlib
import pkgutil

from specbuild.errors import UnsupportedError, close_match

from ..decoder_spec import DecoderSpec
from .base import Config, Family


def families() -> dict[str, Family]:
    """``model_type`` → family, for every module of this folder that has one."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    found = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.model_type: family for family in found}


def family(model_type: object) -> Family:
    """The family that a config's ``model_type`` names.

    Raises:
        UnsupportedError: there is no such family; the closest ones are named.
    """
    known = families()
    if not isinstance(model_type, str) or model_type not in known:
        raise UnsupportedError(
            f"model family {model_type!r} is not supported. There are: {', '.join(sorted(known))}.{_near(str(model_type), known)}"
        )
    return known[model_type]


def decoder_spec(config: Config) -> DecoderSpec:
    """The spec of the decoder that Hugging Face config keys describe.

    Raises:
        UnsupportedError: the family, or a key that changes the mathematics, is not built.
        CheckpointError: a needed key is absent or impossible.
    """
    return family(config.get("model_type")).spec(config)


def _near(word: str, known: dict[str, Family]) -> str:
    hint = close_match(word, known)
    return hint if hint.startswith(" Did") else ""
