"""What a proposer is asked for and what it hands to the verifier: a tree of tokens after one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .law import Law

ROOT = -1
"""The last emitted token, parent of a draft's first tokens."""


@dataclass(frozen=True)
class Shape:
    """What a draft may be like."""

    length: int
    """Tokens of its longest path, at most."""
    budget: int
    """Tokens of all, at most; never fewer. With just as many it is a chain."""

    def __post_init__(self) -> None:
        assert 0 <= self.length <= self.budget, "a path is part of the whole"

    @property
    def branches(self) -> bool:
        """There may be more tokens than the longest path has."""
        return self.budget > self.length

    @classmethod
    def chain(cls, length: int) -> Shape:
        """No branches."""
        return cls(length, length)


NOTHING = Shape.chain(0)
"""No draft is wanted."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A token tree of one sequence; nodes are numbered so that a parent comes before its children. A chain is a tree with one branch.

    What makes every rule exact, whatever the tree:

    - The children of a node are different tokens, numbered in the order in which they were chosen. Each was drawn from its law in
      ``laws``, of which its earlier siblings were left out and the rest renormalised: children drawn without replacement from one law
      all carry that law, whole, and children of several sources each that of its own. A token that was not drawn, among others that
      were, carries ``Law.point`` of itself.
    - Whether a node gets another child, and from which law, may depend on the tokens already drawn, never on the one to be drawn. A
      child once drawn stays: to leave it out for looking unlikely would bias the text.

    Rules that need no laws ask only that siblings differ.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    """Parent of each node; −1: the last emitted token."""
    laws: tuple[Law, ...] | None = None
    """The law that each token was really drawn from, its earlier siblings still in it; None: nothing was drawn, or the rule of acceptance
    does not ask."""
    confidence: tuple[float, ...] | None = None
    """How likely its proposer takes each token to be the target's, given that its parent is; None: it does not say."""

    EMPTY: ClassVar[Draft]

    def __post_init__(self) -> None:
        assert len(self.parents) == len(self.tokens), "one parent a token"
        assert all(ROOT <= parent < node for node, parent in enumerate(self.parents)), "parents come before their children"
        assert self.laws is None or len(self.laws) == len(self.tokens), "one law a token"
        assert self.confidence is None or len(self.confidence) == len(self.tokens), "one confidence a token"

    @classmethod
    def chain(cls, tokens: Sequence[int], laws: Sequence[Law] | None = None) -> Draft:
        """Each token the child of the one before it."""
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), None if laws is None else tuple(laws))

    def cut(self, length: int) -> Draft:
        """The first ``length`` tokens of a chain."""
        if length >= len(self):
            return self
        assert self.is_chain, "a tree has no first tokens"
        laws, confidence = (None if each is None else each[:length] for each in (self.laws, self.confidence))
        return Draft(self.tokens[:length], self.parents[:length], laws, confidence)  # type: ignore[arg-type]  # each keeps its type

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether there is one branch (or none)."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def depth(self) -> int:
        """Tokens on the longest path."""
        return max((len(self.path(node)) for node in range(len(self))), default=0)

    def children(self, node: int) -> tuple[int, ...]:
        """Nodes whose parent is ``node`` (−1: the first tokens), in order."""
        return tuple(child for child, parent in enumerate(self.parents) if parent == node)

    def child(self, node: int, token: int) -> int | None:
        """The child of ``node`` that has ``token``."""
        return next((child for child in self.children(node) if self.tokens[child] == token), None)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the first token down to ``node``; empty for −1."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @property
    def first_branch(self) -> tuple[int, ...]:
        """Nodes of the first child of the first child, and so on."""
        nodes: list[int] = []
        while children := self.children(nodes[-1] if nodes else ROOT):
            nodes.append(children[0])
        return tuple(nodes)

    def law(self, node: int) -> Law:
        """The law that ``node`` was drawn from after its earlier siblings: all mass on its token when nothing was drawn."""
        if self.laws is None:
            return Law.point(self.tokens[node])
        return self.laws[node].without([self.tokens[sibling] for sibling in self.children(self.parents[node]) if sibling < node])


Draft.EMPTY = Draft((), ())
