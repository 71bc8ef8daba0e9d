"""The drafts of several sources as one tree, their common beginnings once, verified in one pass (SpecInfer, 2305.09781)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..draft import ROOT, Draft
from .base import Ask, Composite


class MergedProposer(Composite):
    """The parts are its sources; the draft of the first is kept whole.

    Trees are merged where the rule of acceptance asks only that siblings differ. Where it needs laws, tokens of several sources would have
    to be drawn without regard to each other, and all draw from the one noise of the round: there, and where a chain is wanted, the draft
    is that of the first source that has any.
    """

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        found: list[list[Draft]] = [[] for _ in asks]
        for source in self._parts:
            wanting = [place for place, ask in enumerate(asks) if _merges(ask) or not any(map(len, found[place]))]
            for place, draft in zip(wanting, source.propose([self._share(asks[place]) for place in wanting]), strict=True):
                found[place].append(draft)
        return [merged(drafts, ask.budget) if _merges(ask) else drafts[-1] for ask, drafts in zip(asks, found, strict=True)]

    def _share(self, ask: Ask) -> Ask:
        """What one source is asked for: a chain, or a tree where the budget has room for one of each."""
        return replace(ask, budget=ask.budget // len(self._parts)) if _merges(ask) else ask


def merged(drafts: Iterable[Draft], budget: int) -> Draft:
    """One tree of ``budget`` nodes at most: all of the first draft, then what the others add, as far as there is room."""
    nodes: dict[tuple[int, int], int] = {}
    """(parent, token) → node."""
    for draft in drafts:
        places = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            key = places[parent], token
            if key not in nodes and len(nodes) == budget:
                break
            places[node] = nodes.setdefault(key, len(nodes))
    return Draft(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes))


def _merges(ask: Ask) -> bool:
    return ask.branches and not ask.sequence.rule.needs_laws
