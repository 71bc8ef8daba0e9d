"""A small model of the same vocabulary drafts by itself, one token a pass."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..draft import Draft
from ..law import Law
from ..model import CachedModel, Feed
from ..request import Running
from .base import Ask, Proposer


@dataclass
class _Row:
    """What one row of the draft's cache holds: the sequence's first ``agreed`` tokens, then drafted ones not yet known to be right."""

    agreed: int = 0
    guessed: list[int] = field(default_factory=list)


class _Branch:
    """A draft in the making."""

    def __init__(self, ask: Ask) -> None:
        self.sequence = ask.sequence
        self.missing = ask.draft_len
        self.tokens: list[int] = []
        self.laws: list[Law] = []

    def draft(self) -> Draft:
        return Draft.chain(self.tokens, self.laws if self.sequence.rule.needs_laws else None)


class DraftModelProposer(Proposer):
    """An engine and a cache of its own, brought up to date when a draft is asked for, however many rounds went by without."""

    def __init__(self, model: CachedModel) -> None:
        self._model = model
        self._rows: dict[Hashable, _Row] = {}

    @property
    def engine_seconds(self) -> float:
        return self._model.seconds

    def admit(self, sequence: Running) -> None:
        self._rows[sequence.id] = _Row(agreed=self._model.begin(sequence.id, sequence.tokens[:-1]))

    def read(self, sequence: Running, length: int) -> None:
        self._read(sequence, sequence.tokens[self._rows[sequence.id].agreed : length])

    def start(self, sequence: Running) -> None:
        self._model.start(sequence.id, sequence.tokens[:-1])

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        branches = [_Branch(ask) for ask in asks]
        going = [branch for branch in branches if branch.missing]
        feeds = {branch.sequence.id: self._catch_up(branch.sequence) for branch in going}
        while going:
            logits = self._model.feed(feeds)
            for branch in going:
                self._keep(branch.sequence, feeds[branch.sequence.id].tokens, guessed=bool(branch.tokens))
            for branch in going:
                self._choose(branch, logits[branch.sequence.id][0])
            going = [branch for branch in going if branch.missing]
            feeds = {branch.sequence.id: Feed((branch.tokens[-1],), wanted=(0,)) for branch in going}
        return [branch.draft() for branch in branches]

    def retire(self, sequence: Running) -> None:
        row = self._rows.pop(sequence.id, None)
        known = row.agreed if row is not None and sequence.finish_reason is not None else 0
        self._model.release(sequence.id, sequence.tokens[:known])

    def _catch_up(self, sequence: Running) -> Feed:
        """Drop what was rejected; the first pass feeds what is missing: one token, or two after full acceptance."""
        row = self._rows[sequence.id]
        # The last token is fed again even if it was guessed: the draft goes on from its logits.
        row.agreed += _common_prefix(row.guessed, sequence.tokens[row.agreed : -1])
        row.guessed.clear()
        self._model.cache.truncate(sequence.id, row.agreed)
        if len(sequence.tokens) - row.agreed > self._model.engine.entry.max_step:
            self._read(sequence, sequence.tokens[row.agreed : -1])
        missing = tuple(sequence.tokens[row.agreed :])
        return Feed(missing, wanted=(len(missing) - 1,))

    def _keep(self, sequence: Running, tokens: Sequence[int], *, guessed: bool) -> None:
        """What the pass has written becomes valid, and the row says what it is."""
        self._model.cache.commit(sequence.id, np.arange(len(tokens)))
        row = self._rows[sequence.id]
        if guessed:
            row.guessed += tokens
        else:
            row.agreed += len(tokens)

    def _read(self, sequence: Running, tokens: Sequence[int]) -> None:
        self._model.prefill(sequence.id, tokens)
        self._rows[sequence.id].agreed += len(tokens)

    def _choose(self, branch: _Branch, row: NDArray[np.float32]) -> None:
        sequence = branch.sequence
        with sequence.context.after(branch.tokens):
            law = sequence.transforms.law(row, sequence.context)
        branch.tokens.append(sequence.rule.choose(law, sequence.randomness, len(branch.tokens)))
        branch.laws.append(law)
        branch.missing -= 1


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
