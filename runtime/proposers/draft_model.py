"""A small model of the same vocabulary drafts, one token a pass, or one level of a tree; with a proposer of its own, several tokens a pass.

That makes a cascade of any depth: the inner proposer guesses the tokens that this model is about to choose, one pass of the model judges
the guess, and what the model has chosen is the draft of the next larger one. A choice is a function of the model's law and of the place's
randomness alone (``Rule.choose``), so a guess is right or wrong and changes nothing: the model drafts what it would draft without,
token for token, and each of its tokens carries the model's own law. Where the rule of acceptance spends coins, those choices use the noise
of drafts, which no coin depends on; the inner proposer predicts that same noise.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..draft import ROOT, Draft
from ..model import CachedModel, Feed
from ..request import Running
from .base import Ask, Proposer
from .growth import Growth, Level
from .replay import ReplayProposer


@dataclass
class _Row:
    """What one row of the model's cache holds: the sequence's first ``agreed`` tokens, then drafted ones not yet known to be right."""

    agreed: int = 0
    guessed: Draft = Draft.EMPTY

    def settle(self, text: Sequence[int], drafted: Sequence[int] = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Forget what ``text`` and ``drafted`` disagree with; returns the nodes of ``guessed`` that stay, and those of their tokens that
        are not in the row.

        The last one is among them even if it was guessed: the model goes on from its logits.
        """
        wanted = [*text[self.agreed :], *drafted]
        path: list[int] = []
        for token in wanted[:-1]:
            child = self.guessed.child(path[-1] if path else ROOT, token)
            if child is None:
                break
            path.append(child)
        known = min(len(path), len(text) - 1 - self.agreed)  # only what is in the text stays for good
        self.agreed += known
        self.guessed = Draft.chain(wanted[known : len(path)])
        return tuple(path), tuple(wanted[len(path) :])

    def add(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """What has been written behind ``guessed``; ``parents`` are nodes of that and of ``tokens``; None: a chain from the last one."""
        end = len(self.guessed)
        if parents is None:
            parents = range(end - 1, end + len(tokens) - 1)
        self.guessed = Draft((*self.guessed.tokens, *tokens), (*self.guessed.parents, *parents))


class DraftModelProposer(Proposer):
    """An engine and a cache of its own, brought up to date when a draft is asked for, however many rounds went by without."""

    def __init__(self, model: CachedModel, inner: Proposer | None = None) -> None:
        """``inner`` drafts for this model, which then drafts chains alone; None: nothing does."""
        self._model = model
        self._inner: Proposer = inner or ReplayProposer({})
        self._branches = inner is None
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
        growths = [Growth(self._wanted(ask)) for ask in asks]
        going = [growth for growth in growths if growth.open]
        news = [self._news(growth) for growth in going]
        while going:
            guesses = self._guess(going, news)
            feeds = {g.sequence.id: _feed(g, new, guess) for g, new, guess in zip(going, news, guesses, strict=True)}
            logits = self._model.feed(feeds)
            for growth, new, guess in zip(going, news, guesses, strict=True):
                right = growth.grow(logits[growth.sequence.id], guess)
                self._keep(growth.sequence.id, new, guess, right)
            going = [growth for growth in going if growth.open]
            news = [growth.level() for growth in going]
        return [growth.draft() for growth in growths]

    def retire(self, sequence: Running) -> None:
        row, known = self._rows.pop(sequence.id, None), 0
        if row is not None and sequence.finish_reason is not None:
            self._settle(row, sequence)
            known = row.agreed
        self._model.release(sequence.id, sequence.tokens[:known])
        self._inner.retire(sequence)

    def _wanted(self, ask: Ask) -> Ask:
        """``ask`` as this model answers it. Where another has drafted for it, to stop at a token that it is not sure of saves little."""
        chain = ask if self._branches else ask.chain
        return replace(chain, least=None) if isinstance(self._inner, DraftModelProposer) else chain

    def _settle(self, row: _Row, sequence: Running, drafted: Sequence[int] = ()) -> tuple[int, ...]:
        """Drop what was rejected and gather the rest; returns what is missing."""
        agreed = row.agreed
        path, news = row.settle(sequence.tokens, drafted)
        self._model.cache.truncate(sequence.id, agreed)
        self._model.cache.commit(sequence.id, np.array(path, np.int64))
        return news

    def _news(self, growth: Growth) -> Level:
        """What the first pass has to feed: one token, or two after full acceptance."""
        row = self._rows[growth.sequence.id]
        news = self._settle(row, growth.sequence, growth.after)
        if len(news) > self._model.engine.entry.max_step:
            self._model.prefill(growth.sequence.id, news[:-1])
            row.add(news[:-1])
            news = news[-1:]
        return news, tuple(range(ROOT, len(news) - 1))

    def _guess(self, going: Sequence[Growth], news: Sequence[Level]) -> list[Draft]:
        """The inner proposer's drafts, as long as they can be of use (a pass always chooses one token more) and fit a pass."""
        longest = self._model.engine.entry.max_step
        return self._inner.propose(
            [
                Ask(growth.sequence, min(growth.missing - 1, longest - len(tokens)), after=growth.after)
                for growth, (tokens, _) in zip(going, news, strict=True)
            ]
        )

    def _keep(self, owner: Hashable, new: Level, guess: Draft, right: Sequence[int]) -> None:
        """What the pass has written of ``new`` and of the nodes of ``guess`` that came true becomes valid, and the row says what it is."""
        (tokens, parents), row = new, self._rows[owner]
        self._model.cache.commit(owner, np.array([*range(len(tokens)), *(len(tokens) + node for node in right)]))
        grown = len(parents) - len(tokens)
        row.add(tokens, [parent + len(row.guessed) - grown for parent in parents[grown:]])
        row.add([guess.tokens[node] for node in right])


def _feed(growth: Growth, new: Level, guess: Draft) -> Feed:
    """One pass: what is new, then the guess; logits are wanted after each open node and each guessed one."""
    tokens, parents = new
    every = (*tokens, *guess.tokens)
    return Feed(
        every,
        (*parents, *(len(parents) + parent for parent in guess.parents)),
        wanted=tuple(range(len(tokens) - len(growth.open), len(every))),
    )
