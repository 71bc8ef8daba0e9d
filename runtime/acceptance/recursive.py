"""Recursive rejection without replacement (SpecInfer 2305.09781, Sequoia 2402.12374): a tree is judged from its root down, child
by child; on a chain it is token rejection."""

from __future__ import annotations

from ..draft import ROOT, Draft
from ..law import Law
from ..transforms import LawAt
from . import rejection
from .base import Randomness, Verdict


def judge(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    """r = p; keep the child x, drawn from q, with probability min(1, r(x)/q(x)), else r ← norm(max(r − q, 0)) and on with the next;
    after the last the tail comes from r."""
    node, accepted = ROOT, list[int]()
    while True:
        left = law_at(node)
        for child in draft.children(node):
            q = draft.law(child)
            if randomness.coin(rejection.reach(1, left, q, draft.tokens[child]), child):
                break
            weights = rejection.residual(left, q, 1)
            if (weights > 0).any():  # else the two are equal but for rounding
                left = Law.weighted(left.tokens, weights)
        else:
            return Verdict.of(draft, accepted, randomness.tail(left.tokens, left.p, len(accepted)))
        accepted.append(child)
        node = child
