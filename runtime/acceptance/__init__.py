"""Acceptance: which draft tokens are kept, and the token that follows them. Pure functions, no engine, no state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from specbuild.errors import UnsupportedError

from ..draft import Draft
from ..transforms import LawAt
from . import coupled, recursive, rejection, target_only, traversal, typical
from .base import Randomness, Rule, SeededRound, Verdict


def _chain_rule(name: str, judge: Callable[[LawAt, Draft, Randomness], Verdict]) -> Rule:
    """A rule that refuses trees."""

    def judge_chain(law_at: LawAt, draft: Draft, randomness: Randomness) -> Verdict:
        if not draft.is_chain:
            others = ", ".join(other for other, rule in RULES.items() if rule.trees)
            raise UnsupportedError(f"verification {name!r} judges chains, not a tree of {len(draft)} tokens; trees are judged by {others}")
        return judge(law_at, draft, randomness)

    return Rule(rejection.choose_children, judge_chain, needs_laws=True, trees=False)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "coupled": Rule(coupled.choose_children, coupled.judge, needs_laws=False, foreseen=True),
        "block": _chain_rule("block", rejection.judge_block),
        "token": _chain_rule("token", rejection.judge_tokens),
        "traversal": Rule(rejection.choose_children, traversal.judge, needs_laws=True),
        "recursive": Rule(rejection.choose_children, recursive.judge, needs_laws=True),
        "target_only": Rule(target_only.choose_children, target_only.judge, needs_laws=False),
    }
)
"""The lossless rules by name."""

LOSSY: Mapping[str, Rule] = MappingProxyType({"typical": Rule(target_only.choose_children, typical.judge, needs_laws=False)})
"""Rules that change the law of the output: only a recipe's ``speculation.lossy`` asks for one."""

__all__ = ["LOSSY", "RULES", "Randomness", "Rule", "SeededRound", "Verdict"]
