"""Traversal verification (2505.12398): a tree is judged from its leaves to its root; on a chain it is block verification.

A visit of node u has to keep u with probability P_u, followed by a token of the law p_u; at the root P_u = 1 and p_u = p. The next
child x was drawn from q, and the visit hands it what q can bring, to keep the rest for the children that follow:

    P_u·p_u = min(P_u·p_u, q) + max(P_u·p_u − q, 0)

With P_x = min(1, P_u·p_u(x)/q(x)) the child is drawn and kept with q(x)·P_x = min(P_u·p_u(x), q(x)), the first part. It is not kept
with probability 1 − Σ min(P_u·p_u, q) = S + 1 − P_u, where S = Σ max(P_u·p_u − q, 0). The second part is due then, whichever x it was:
p_u ← max(P_u·p_u − q, 0)/S and P_u ← S/(S + 1 − P_u). With no child left, a coin of P_u keeps u, and the tail comes from p_u.
By induction the law is the target's, whatever the tree, though it may have grown by what was drawn.
"""

from __future__ import annotations

from typing import Any

from ..draft import ROOT, Draft
from ..law import Law
from ..transforms import LawAt
from . import rejection
from .base import Randomness, Verdict


def judge(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    """Keep the first path, leftmost and longest first, whose coin falls. Laws are asked for of inner nodes and of the last one kept."""

    def visit(node: int, reach: Any) -> Verdict | None:
        """A path through ``node``, with probability ``reach``."""
        left: Law | None = None
        for child in draft.children(node) if reach > 0 else ():
            left = left or law_at(node)
            q = draft.law(child)
            verdict = visit(child, rejection.reach(reach, left, q, draft.tokens[child]))
            if verdict is not None:
                return verdict
            weights = rejection.residual(left, q, reach)
            rest = weights.sum()
            if not rest > 0:
                reach = 0  # the children had all there was; at the root only by rounding, where p and q are equal
                break
            left, reach = Law.weighted(left.tokens, weights), rest / (rest + (1 - reach))
        if node != ROOT and not randomness.coin(reach, node):
            return None
        p, path = left or law_at(node), draft.path(node)
        return Verdict.of(draft, path, randomness.tail(p.tokens, p.p, len(path)))

    verdict = visit(ROOT, 1)
    assert verdict is not None, "the root is kept if nothing else is"
    return verdict
