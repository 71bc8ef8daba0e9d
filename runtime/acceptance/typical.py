"""Typical acceptance (Medusa, 2401.10774): lossy. What the target finds likely enough is kept, so its law is not the target's."""

from __future__ import annotations

import math

from ..draft import ROOT, Draft
from ..law import Law
from ..transforms import LawAt
from .base import Randomness, Verdict

EPSILON, DELTA = 0.09, 0.3


def judge(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    """Keep the longest path (the first of equals) all of whose tokens have p(x) > min(ε, δ·exp(−H(p))), H the entropy of p in nats;
    the tail comes from p. At temperature 0 that is greedy decoding still."""
    kept = {ROOT}
    for node, parent in enumerate(draft.parents):
        if parent in kept and is_typical(law_at(parent), draft.tokens[node]):
            kept.add(node)
    path = max((draft.path(node) for node in sorted(kept)), key=len)
    p = law_at(path[-1] if path else ROOT)
    return Verdict.of(draft, path, randomness.tail(p.tokens, p.p, len(path)))


def is_typical(p: Law, token: int) -> bool:
    """Whether ``token`` is likely, or the law so flat that it is as likely as most."""
    entropy = -float(p.p @ p.log_p)
    return bool(p.probability(token) > min(EPSILON, DELTA * math.exp(-entropy)))
