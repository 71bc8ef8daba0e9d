"""A draft in the making, level by level from a proposer's own logits: a chain, or the tree that its budget allows.

After EAGLE-2 (2406.16858). The confidence in a token is its probability by the logits, that of a node the product along its path. Where
the target's token is foreseen (coupled sampling) the noise g is known, and a logit l counts for l + T·g among those of the node's
children: what decides is how close a call it is. At temperature T = 0 that is the same but for the normalisation.

The first child of each node on the first branch is the chain that would be drafted without a tree, and it stays; the rest of the budget
goes to the nodes that are worth most, of all levels:

- Under a rule that needs no laws a node is worth its confidence. Any node may be left out, whatever its token, because such a rule asks
  only that siblings differ. At temperature 0 no tree around the chain, as deep and as large, has more confidence.
- Where laws are needed a node is worth what is known before its token is drawn: the confidence of its parent times what the earlier
  siblings left of it. Its own descendants and the siblings after it are worth no more, so that none of them can push it out: whether
  it stays does not depend on its token, and the tree is the one that a draw in the order of worth would have made, node by node.

A node that is not among the best when its level is drafted never will be: only those that are get children.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import exp, inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.errors import RequestError

from ..draft import ROOT, Draft
from ..law import Law
from .base import Ask

RIVALS = 4
"""Tokens that the confidence in a single one is measured against, itself among them."""

Level = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens to be fed, and the parents of all drafted ones that have been fed so far, theirs last (as in ``Feed``)."""


@dataclass(eq=False, frozen=True)
class Node:
    """A drafted token, or the one that the draft follows (depth 0)."""

    token: int
    parent: Node | None
    law: Law | None
    """What it was drawn from, its earlier siblings still in it."""
    depth: int
    first: bool
    """On the first branch."""
    confidence: float
    """Logarithm of the product along its path."""
    worth: float
    """What decides whether it stays, a logarithm too; falls from parent to child and from sibling to sibling."""

    @property
    def path(self) -> tuple[int, ...]:
        """Tokens from the first drafted one to this."""
        return () if self.parent is None else (*self.parent.path, self.token)


class Growth:
    """What has been drafted so far for one ask."""

    def __init__(self, ask: Ask) -> None:
        self.sequence = ask.sequence
        self._ask = ask
        self._extra = ask.budget - ask.draft_len
        """Nodes beside the first branch, at most."""
        # Where laws are needed a token must not be left out for what it is.
        self._weighed = ask.least is not None and ask.draft_len > 0 and not ask.branches and not ask.sequence.rule.needs_laws
        self._least = [_log(least) for least in ask.least or ()] if self._weighed else []
        """Confidence, a logarithm, below which a chain of 1, 2, … tokens does not go on."""
        self._root = Node(ROOT, None, None, 0, first=True, confidence=0.0, worth=0.0)
        self._nodes: list[Node] = []
        self._fed: list[Node] = []
        self.open: list[Node] = [self._root] if ask.draft_len else []
        """Nodes that are to get children, the first branch first: their logits are wanted."""

    @property
    def after(self) -> tuple[int, ...]:
        """What follows the text up to the first branch's end: a larger model's tokens, then the draft's."""
        return (*self._ask.after, *self.open[0].path)

    @property
    def missing(self) -> int:
        """Levels that are still to come."""
        return self._ask.draft_len - self.open[0].depth if self.open else 0

    def level(self) -> Level:
        """The open nodes, to be fed."""
        self._fed += self.open
        return tuple(node.token for node in self.open), self._parents(self._fed)

    def grow(self, rows: Iterable[NDArray[np.float32]], guess: Draft = Draft.EMPTY) -> list[int]:
        """Give children to the open nodes, by their logits [≥ V]; returns the nodes of ``guess`` that came true.

        ``guess``: the next tokens of a chain as somebody foresaw them, whose logits come next; the chain goes on as far as it was right.
        """
        given = iter(rows)
        self._extend(given)
        behind, right = list(given) if len(guess) else [], list[int]()
        while self.open and (child := guess.child(right[-1] if right else ROOT, self.open[0].token)) is not None:
            right.append(child)
            self._fed += self.open
            self._extend([behind[child]])
        return right

    def draft(self) -> Draft:
        """What has grown, with its laws where the rule of acceptance asks for them."""
        laws = tuple(node.law for node in self._nodes if node.law is not None) if self.sequence.rule.needs_laws else None
        shares = tuple(exp(node.confidence - node.parent.confidence) for node in self._nodes if node.parent) if self._weighed else None
        return Draft(tuple(node.token for node in self._nodes), self._parents(self._nodes), laws, shares)

    def _parents(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        """Of each of ``nodes``, the place of its parent among them."""
        places: dict[Node | None, int] = {self._root: ROOT}
        places.update((node, place) for place, node in enumerate(nodes))
        return tuple(places[node.parent] for node in nodes)

    def _extend(self, rows: Iterable[NDArray[np.float32]]) -> None:
        """One more level."""
        grown = [
            child for branch, (node, row) in enumerate(zip(self.open, rows, strict=False)) for child in self._children(node, row, branch)
        ]
        nodes = [*self._nodes, *grown]
        best = set(nlargest(self._extra, (node for node in nodes if not node.first), key=lambda node: node.worth))
        self._nodes = [node for node in nodes if node.first or node in best]
        kept = [node for node in grown if node.first or node in best]
        self.open = [node for node in kept if node.depth < self._ask.draft_len and not self._doubted(node)]

    def _doubted(self, node: Node) -> bool:
        return bool(self._least) and node.confidence < self._least[node.depth - 1]

    def _children(self, node: Node, row: NDArray[np.float32], branch: int) -> list[Node]:
        """As many as might stay. None where all that the proposer can draft is forbidden: the target may know more tokens."""
        sequence, count, before = self.sequence, self._extra + 1, (*self._ask.after, *node.path)
        try:
            with sequence.context.after(before):
                law = sequence.transforms.draft_law(row, sequence.context, count)
        except RequestError:
            return []
        beside = max(count, RIVALS) if self._weighed else count  # how sure a foreseen token is its rivals say
        tokens = sequence.rule.choose_children(law, sequence.randomness, len(before), beside, branch)
        shares = self._shares(row, law, tokens, len(before)) if self._extra or self._weighed else np.ones(1)
        children: list[Node] = []
        worth, left = node.worth, 1.0
        for token, share in zip(tokens[:count], shares.tolist()[:count], strict=True):
            confidence = node.confidence + _log(share)
            if sequence.rule.needs_laws:
                worth, left = min(worth, node.confidence + _log(left)), left - share
            else:
                worth = min(node.worth, confidence)
            children.append(Node(token, node, law, node.depth + 1, node.first and not children, confidence, worth))
        return children

    def _shares(self, row: NDArray[np.float32], law: Law, tokens: tuple[int, ...], depth: int) -> NDArray[Any]:
        """[n] the confidence in each of ``tokens``, children of one node."""
        sequence, temperature = self.sequence, self.sequence.request.params.temperature
        if sequence.rule.foreseen and temperature > 0:
            scores = law.scores[np.searchsorted(law.tokens, tokens)] + sequence.randomness.noise(tokens, depth)
            return _softmax(temperature * scores, slice(None))
        # Not of the law, which at temperature 0 knows of no second choice.
        return _softmax(row[: sequence.transforms.vocabulary_size], list(tokens))


def _softmax(scores: NDArray[Any], of: list[int] | slice) -> NDArray[Any]:
    """The shares ``of`` some of all."""
    weights = np.exp(scores - scores.max())
    shares: NDArray[Any] = weights[of] / weights.sum()
    return shares


def _log(share: float) -> float:
    return log(share) if share > 0 else -inf
