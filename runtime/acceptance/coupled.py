"""Coupled sampling (2408.07978): the target's token is fixed by shared noise, and a draft is a guess of it."""

from __future__ import annotations

from ..draft import ROOT, Draft
from ..law import Law
from ..transforms import LawAt
from .base import Randomness, Verdict


def choose_children(law: Law, randomness: Randomness, depth: int, count: int, branch: int) -> tuple[int, ...]:
    """Draft what the target would emit if it had this law, argmax(log q + g), and the next best. Whatever the branch: one noise a place."""
    return randomness.guesses(law, depth, count)


def judge(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
    """Walk down the tree while the target's own token is among the children; only the laws of reached nodes are asked for."""
    node = ROOT
    accepted: list[int] = []
    while True:
        token = randomness.shared(law_at(node), len(accepted))
        child = draft.child(node, token)
        if child is None:
            return Verdict.of(draft, accepted, token)
        accepted.append(child)
        node = child
