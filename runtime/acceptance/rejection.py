"""Rules of acceptance for chains that spend coins: token rejection and block verification.

p is the target's law, q the law that the draft token was drawn from (all mass on it when nothing was drawn). The text
depends on the draft, its law does not. All arithmetic is generic: exact for exact probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..draft import Draft
from ..law import Law
from ..transforms import LawAt
from .base import Randomness, Verdict


def choose_children(law: Law, randomness: Randomness, depth: int, count: int, branch: int) -> tuple[int, ...]:
    """Draft tokens without replacement, independent of the coins that judge them."""
    return randomness.draft(law, depth, count, branch)


def judge_tokens(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    """Token rejection (2211.17192, 2302.01318): keep x with probability min(1, p(x)/q(x)); the first that fails is redrawn
    from norm(max(p − q, 0)).
    """
    for node, token in enumerate(draft.tokens):
        p, q = law_at(node - 1), draft.law(node)
        if not randomness.coin(reach(1, p, q, token), node):
            return _recovered(p, q, 1, draft, node, randomness)
    return _bonus(law_at, draft, randomness)


def judge_block(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    """Block verification (2403.10444): keep the longest prefix whose own coin falls.

    P₀ = 1, Pᵢ = min(1, Pᵢ₋₁·pᵢ(xᵢ)/qᵢ(xᵢ)); Sᵢ = Σₓ max(Pᵢ·pᵢ₊₁(x) − qᵢ₊₁(x), 0); hᵢ = Sᵢ/(Sᵢ + 1 − Pᵢ) for i < γ, h_γ = P_γ;
    after i < γ tokens the next is drawn from norm(max(Pᵢ·pᵢ₊₁ − qᵢ₊₁, 0)).
    """
    length, kept, kept_reach = len(draft), 0, 1
    prefix_reach: Any = 1
    for node, token in enumerate(draft.tokens):
        prefix_reach = reach(prefix_reach, law_at(node - 1), draft.law(node), token)
        if prefix_reach == 0:
            break  # no longer prefix can be kept
        if node + 1 < length:
            rest = residual(law_at(node), draft.law(node + 1), prefix_reach).sum()
            # Without a residual and with P = 1 the next prefix is sure to be kept, and this one's coin says nothing.
            probability = rest / (rest + (1 - prefix_reach)) if rest > 0 else 0
        else:
            probability = prefix_reach
        if randomness.coin(probability, node):
            kept, kept_reach = node + 1, prefix_reach
    if kept == length:
        return _bonus(law_at, draft, randomness)
    return _recovered(law_at(kept - 1), draft.law(kept), kept_reach, draft, kept, randomness)


def reach(before: Any, p: Law, q: Law, token: int) -> Any:
    """min(1, before·p(x)/q(x)): the mass with which a draft's prefix is the target's own."""
    return min(1, before * p.probability(token) / q.probability(token))


def residual(p: Law, q: Law, scale: Any) -> NDArray[Any]:
    """max(scale·p − q, 0) over p's tokens: what the target has and the draft did not bring."""
    weights: NDArray[Any] = np.maximum(scale * p.p - q.at(p.tokens), 0)
    return weights


def _recovered(p: Law, q: Law, scale: Any, draft: Draft, kept: int, randomness: Randomness) -> Verdict:
    weights = residual(p, q, scale)
    if not (weights > 0).any():
        weights = p.p  # p and q are equal but for rounding
    return Verdict.of(draft, range(kept), randomness.tail(p.tokens, weights, kept))


def _bonus(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    p = law_at(len(draft) - 1)
    return Verdict.of(draft, range(len(draft)), randomness.tail(p.tokens, p.p, len(draft)))
