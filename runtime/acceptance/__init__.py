"""Acceptance: which draft tokens are kept, and the token that follows them. Pure functions, no engine, no state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import coupled, rejection
from .base import Randomness, Rule, SeededRound, Verdict

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "coupled": Rule(coupled.choose, coupled.judge, needs_laws=False),
        "block": Rule(rejection.choose, rejection.judge_block, needs_laws=True),
        "token": Rule(rejection.choose, rejection.judge_tokens, needs_laws=True),
    }
)
"""The lossless rules by name."""

__all__ = ["RULES", "Randomness", "Rule", "SeededRound", "Verdict"]
