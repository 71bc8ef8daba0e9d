"""Acceptance: which draft tokens are kept, and the token that follows them. Pure functions, no engine, no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ..context import Context
from ..draft import Draft
from ..transforms import Transforms
from . import coupled, rejection
from .base import Randomness, Rule, SeededRound, Verdict
from .coupled import coupled_choice

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "coupled": Rule(coupled.choose, coupled.judge, needs_laws=False),
        "block": Rule(rejection.choose, rejection.judge_block, needs_laws=True),
        "token": Rule(rejection.choose, rejection.judge_tokens, needs_laws=True),
    }
)
"""The lossless rules by name."""


def accept(
    rows: Sequence[NDArray[np.float32]] | NDArray[np.float32],
    draft: Draft,
    transforms: Transforms,
    context: Context,
    seed: int,
    rule: str = "coupled",
) -> Verdict:
    """Judge one sequence's draft by the target's logits.

    ``rows`` [1 + len(draft), ≥ V]: after the last emitted token, then after each node. ``context`` holds prompt and emitted tokens, and is
    the same afterwards. An empty draft is plain decoding.

    Raises:
        UnsupportedError: the rule judges chains only and the draft is a tree.
    """
    return RULES[rule].judge(transforms.laws(rows, draft, context), draft, SeededRound(seed, context.position))


__all__ = ["RULES", "Randomness", "Rule", "SeededRound", "Verdict", "accept", "coupled_choice"]
