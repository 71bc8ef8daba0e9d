"""Target-only verification: the target draws without a look at the draft, whose likeliest tokens are the children."""

from __future__ import annotations

from ..draft import ROOT, Draft
from ..law import Law
from ..transforms import LawAt
from .base import Randomness, Verdict


def choose_children(law: Law, randomness: Randomness, depth: int, count: int, branch: int) -> tuple[int, ...]:
    """The likeliest tokens: nothing is drawn."""
    return law.likeliest(count)


def judge(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    """Draw from p; walk down while the token is among the children, else emit it."""
    node, accepted = ROOT, list[int]()
    while True:
        p = law_at(node)
        token = randomness.tail(p.tokens, p.p, len(accepted))
        child = draft.child(node, token)
        if child is None:
            return Verdict.of(draft, accepted, token)
        accepted.append(child)
        node = child
