"""A small model of the same vocabulary drafts, one token a pass; with a proposer of its own, several tokens a pass.

That makes a cascade of any depth: the inner proposer guesses the tokens that this model is about to choose, one pass of the model judges
the guess, and what the model has chosen is the draft of the next larger one. A choice is a function of the model's law and of the place's
randomness alone (``Rule.choose``), so a guess is right or wrong and changes nothing: the model drafts what it would draft without,
token for token, and each of its tokens carries the model's own law. Where the rule of acceptance spends coins, those choices use the noise
of drafts, which no coin depends on; the inner proposer predicts that same noise.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..draft import ROOT, Draft
from ..model import CachedModel, Feed
from ..request import Running
from .base import Ask, Proposer
from .branch import Branch
from .replay import ReplayProposer


@dataclass
class _Row:
    """What one row of the model's cache holds: the sequence's first ``agreed`` tokens, then drafted ones not yet known to be right."""

    agreed: int = 0
    guessed: list[int] = field(default_factory=list)

    def settle(self, text: Sequence[int], drafted: Sequence[int] = ()) -> tuple[int, ...]:
        """Forget what ``text`` and ``drafted`` disagree with; returns those of their tokens that are not in the row.

        The last one is among them even if it was guessed: the model goes on from its logits.
        """
        wanted = [*text[self.agreed :], *drafted]
        kept = _common_prefix(self.guessed, wanted[:-1])
        known = min(kept, len(text) - 1 - self.agreed)  # only what is in the text stays for good
        self.agreed += known
        self.guessed = self.guessed[known:kept]
        return tuple(wanted[kept:])

    @property
    def length(self) -> int:
        """Valid positions of the row."""
        return self.agreed + len(self.guessed)


class DraftModelProposer(Proposer):
    """An engine and a cache of its own, brought up to date when a draft is asked for, however many rounds went by without."""

    def __init__(self, model: CachedModel, inner: Proposer | None = None) -> None:
        """``inner`` drafts for this model; None: nothing does."""
        self._model = model
        self._inner: Proposer = inner or ReplayProposer({})
        self._rows: dict[Hashable, _Row] = {}

    @property
    def engine_seconds(self) -> float:
        return self._model.seconds + self._inner.engine_seconds

    def admit(self, sequence: Running) -> None:
        self._rows[sequence.id] = _Row(agreed=self._model.begin(sequence.id, sequence.tokens[:-1]))
        self._inner.admit(sequence)

    def read(self, sequence: Running, length: int) -> None:
        row = self._rows[sequence.id]
        self._model.prefill(sequence.id, sequence.tokens[row.agreed : length])
        row.agreed = max(row.agreed, length)
        self._inner.read(sequence, length)

    def start(self, sequence: Running) -> None:
        self._model.start(sequence.id, sequence.tokens[:-1])
        self._inner.start(sequence)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        branches = [Branch(ask) for ask in asks]
        while going := [branch for branch in branches if branch.missing]:
            news = [self._news(branch) for branch in going]
            guesses = self._guess(going, news)
            feeds = {branch.sequence.id: _feed(new, guess) for branch, new, guess in zip(going, news, guesses, strict=True)}
            logits = self._model.feed(feeds)
            for branch, new, guess in zip(going, news, guesses, strict=True):
                right = branch.follow(logits[branch.sequence.id], guess)
                self._keep(branch.sequence, [*range(len(new)), *(len(new) + node for node in right)], feeds[branch.sequence.id].tokens)
        return [branch.draft() for branch in branches]

    def retire(self, sequence: Running) -> None:
        row = self._rows.pop(sequence.id, None)
        known = 0
        if row is not None and sequence.finish_reason is not None:
            row.settle(sequence.tokens)
            known = row.agreed
        self._model.release(sequence.id, sequence.tokens[:known])
        self._inner.retire(sequence)

    def _news(self, branch: Branch) -> tuple[int, ...]:
        """Drop what was rejected; returns what the next pass has to feed: one token, or two after full acceptance."""
        owner, row = branch.sequence.id, self._rows[branch.sequence.id]
        news = row.settle(branch.sequence.tokens, branch.after)
        self._model.cache.truncate(owner, row.length)
        if len(news) > self._model.engine.entry.max_step:
            self._model.prefill(owner, news[:-1])
            row.guessed += news[:-1]
            return news[-1:]
        return news

    def _guess(self, going: Sequence[Branch], news: Sequence[tuple[int, ...]]) -> list[Draft]:
        """The inner proposer's drafts, as long as they can be of use (a pass always chooses one token more) and fit a pass."""
        longest = self._model.engine.entry.max_step
        return self._inner.propose(
            [
                Ask(branch.sequence, min(branch.missing - 1, longest - len(new)), after=branch.after)
                for branch, new in zip(going, news, strict=True)
            ]
        )

    def _keep(self, sequence: Running, path: Sequence[int], fed: Sequence[int]) -> None:
        """What the pass has written along ``path`` becomes valid, and the row says what it is."""
        self._model.cache.commit(sequence.id, np.array(path))
        self._rows[sequence.id].guessed += [fed[place] for place in path]


def _feed(new: tuple[int, ...], guess: Draft) -> Feed:
    """One pass: what is new, then the guess; logits are wanted after the last new token and after each guessed one."""
    last = len(new) - 1
    parents = None if guess.is_chain else (*range(ROOT, last), *(last + 1 + parent for parent in guess.parents))
    return Feed((*new, *guess.tokens), parents, wanted=tuple(range(last, last + 1 + len(guess))))


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
