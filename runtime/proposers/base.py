"""What every proposer is: sequences and how many tokens are asked for go in, drafts come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..draft import Draft
from ..ground import Ground, copied
from ..request import Running


@dataclass(frozen=True)
class Ask:
    """A draft wanted after the last token of ``sequence``, or after tokens that are themselves only drafted."""

    sequence: Running
    draft_len: int
    """Tokens of its longest path, at most."""
    after: tuple[int, ...] = ()
    """Tokens to be taken as if they had been emitted: what a larger draft model has drafted so far. The next round may know better."""
    budget: int = 0
    """Tokens of the whole tree, at most; never fewer than ``draft_len``. With just as many the draft is a chain."""
    least: tuple[float, ...] | None = None
    """The draft will be cut where that pays: a chain may say how sure of its tokens it is, and end after 1, 2, … tokens where all of them
    together are less likely than so. None: it shall not."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", max(self.budget, self.draft_len))

    @property
    def tokens(self) -> list[int]:
        """The text that the draft is to continue; not to be changed."""
        return [*self.sequence.tokens, *self.after] if self.after else self.sequence.tokens

    @property
    def branches(self) -> bool:
        """There may be more tokens than the longest path has."""
        return self.budget > self.draft_len

    @property
    def chosen(self) -> bool:
        """The length was chosen by what drafts that rest on the like brought and cost."""
        return self.least is not None

    @property
    def chain(self) -> Ask:
        """The same without branches, for a proposer that makes none."""
        return replace(self, budget=self.draft_len)


@dataclass(frozen=True)
class Seen:
    """What the target knew at some tokens of a sequence."""

    start: int
    """Position of the first of them."""
    hidden: NDArray[np.float32]
    """[n,W] the target's tapped hidden states at positions start … start + n − 1."""


class Proposer(ABC):
    """Drafts for sequences between ``admit`` and ``retire``. Whatever it drafts, the output's law is the target's.

    To be inherited: a proposer that keeps nothing of its sequences has only to propose.
    """

    @property
    def engine_seconds(self) -> float:
        """Time spent so far in engine passes of its own."""
        return 0.0

    def admit(self, sequence: Running) -> None:
        """A sequence joins; its tokens are its prompt's. Another joins when this one's prompt has been read."""

    def read(self, sequence: Running, length: int) -> None:
        """The target has read the first ``length`` prompt tokens: time to read as far."""

    def start(self, sequence: Running) -> None:
        """The target has read the whole prompt: drafts are asked for from now on."""

    def observe(self, sequence: Running, seen: Seen) -> None:
        """The target has read tokens that stay; where it gives out hidden states, these are theirs, every position once and in order.

        Positions before the first that is seen were known before the request came, from a text that begins alike.
        """

    def ground(self, ask: Ask) -> Ground | None:
        """What a draft for ``ask`` would rest on; None: there would be none. Asked before the length of the draft is chosen."""
        return Ground()

    @abstractmethod
    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """A draft for each of ``asks``, in order; an empty one where there is nothing to propose.

        Tokens that come from a law of the proposer's own are chosen by ``sequence.rule.choose_children``, and where that rule needs
        them the draft carries the laws: then a token once chosen is never left out for looking unlikely, which would bias the text.
        """

    def retire(self, sequence: Running) -> None:
        """A sequence leaves, even one whose ``admit`` was interrupted or never came."""


class Retriever(Proposer):
    """A proposer that copies what followed an earlier occurrence of the text's end."""

    @abstractmethod
    def match(self, ask: Ask) -> int:
        """Tokens of the text's end that the draft for ``ask`` goes on from; 0 where it would be empty."""

    def ground(self, ask: Ask) -> Ground | None:
        """The longer the match, the more of a copy is right."""
        return copied(self.match(ask))


class Composite(Proposer):
    """Several proposers, all of which know every sequence: one that was not asked for some rounds catches up when it is."""

    def __init__(self, *parts: Proposer) -> None:
        self._parts = parts

    @property
    def engine_seconds(self) -> float:
        return sum(part.engine_seconds for part in self._parts)

    def admit(self, sequence: Running) -> None:
        for part in self._parts:
            part.admit(sequence)

    def read(self, sequence: Running, length: int) -> None:
        for part in self._parts:
            part.read(sequence, length)

    def start(self, sequence: Running) -> None:
        for part in self._parts:
            part.start(sequence)

    def observe(self, sequence: Running, seen: Seen) -> None:
        for part in self._parts:
            part.observe(sequence, seen)

    def retire(self, sequence: Running) -> None:
        for part in self._parts:
            part.retire(sequence)
