"""A chain in the making, token by token from a proposer's own logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..draft import ROOT, Draft
from ..law import Law
from .base import Ask


class Branch:
    """What has been drafted so far for one ask."""

    def __init__(self, ask: Ask) -> None:
        self.sequence = ask.sequence
        self._ask = ask
        self._laws: list[Law] = []
        self.tokens: list[int] = []

    @property
    def after(self) -> tuple[int, ...]:
        """What follows the text: a larger model's tokens, then this branch's."""
        return (*self._ask.after, *self.tokens)

    @property
    def missing(self) -> int:
        """Tokens that it may still get."""
        return self._ask.draft_len - len(self.tokens)

    def choose(self, row: NDArray[np.float32]) -> int:
        """The next token, by logits [≥ V].

        Raises:
            RequestError: the request forbids every token that ``row`` has.
        """
        sequence, after = self.sequence, self.after
        with sequence.context.after(after):
            law = sequence.transforms.law(row, sequence.context)
        token = sequence.rule.choose(law, sequence.randomness, len(after))
        self.tokens.append(token)
        self._laws.append(law)
        return token

    def follow(self, rows: NDArray[np.float32], guess: Draft) -> list[int]:
        """Choose the next token, and one more after each token of ``guess`` that was right; returns the nodes that were.

        ``rows`` [1 + len(guess), V]: the logits after what is known, then after each node.
        """
        right: list[int] = []
        while True:
            node = right[-1] if right else ROOT
            token = self.choose(rows[node + 1])
            child = next((child for child in guess.children(node) if guess.tokens[child] == token), None)
            if child is None:
                return right
            right.append(child)

    def draft(self) -> Draft:
        """The chain, with its laws where the rule of acceptance asks for them."""
        return Draft.chain(self.tokens, self._laws if self.sequence.rule.needs_laws else None)
