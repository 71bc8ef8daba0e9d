"""A target compiled in two: its first layers, which also draft (early exit), and the rest, which goes on from what they made.

    input_ids [B,S]  →  lower part: layers 0 … n − 1  →  hidden [B,S,H]  →  upper part: layers n … L − 1  →  logits [B,R,V]
                             └→ norm and head: a draft's logits

A draft's tokens go through the lower part one by one, on the target's own cache rows, and the hidden states are kept until the
target's next pass. That pass runs the lower part on the tokens that it has not read yet, such as the draft's last, and the upper part
on all: the shared layers read each token once (2404.16710). It rests on bits that do not depend on how many tokens share a pass;
where the probe saw them differ, the lower part reads all of the pass again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import EngineEntry
from specbuild.recipe import LOWER

from ..engine import Engine, KvStorage, Step


@dataclass(frozen=True, eq=False)
class _Ahead:
    """What the lower part has read of a row beyond what the upper part has."""

    start: int
    """Cache position of the first token."""
    tokens: NDArray[np.int64]
    hidden: NDArray[np.float32]
    """[tokens,W]"""

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)


class SplitStorage:
    """The caches of both parts, row by row, and what the lower part has read ahead: lost as soon as its row changes otherwise."""

    def __init__(self, lower: KvStorage, upper: KvStorage) -> None:
        self.lower, self.upper = lower, upper
        self.rows, self.view = lower.rows, lower.view
        self.ahead: dict[int, _Ahead] = {}

    def resize(self, view: int, lengths: NDArray[np.int64]) -> None:
        self.ahead.clear()  # only valid positions are kept
        self.lower.resize(view, lengths)
        self.upper.resize(view, lengths)
        self.view = self.lower.view

    def copy_row(self, source: KvStorage, row: int, target: int, length: int) -> None:
        assert isinstance(source, SplitStorage), "rows are copied between storages of one engine"
        self.ahead.pop(target, None)
        self.lower.copy_row(source.lower, row, target, length)
        self.upper.copy_row(source.upper, row, target, length)

    def save(self, row: int, length: int) -> tuple[Any, Any]:
        return self.lower.save(row, length), self.upper.save(row, length)

    def restore(self, row: int, saved: tuple[Any, Any], length: int) -> None:
        self.ahead.pop(row, None)
        self.lower.restore(row, saved[0], length)
        self.upper.restore(row, saved[1], length)

    def move_tokens(self, row: int, sources: NDArray[np.int64], start: int) -> None:
        self.ahead.pop(row, None)
        self.lower.move_tokens(row, sources, start)
        self.upper.move_tokens(row, sources, start)

    def touch(self) -> None:
        self.lower.touch()
        self.upper.touch()

    def keep(self, step: Step, first_row: int, hidden: NDArray[np.float32]) -> None:
        """Remember what the lower part made of a step: ``hidden`` [B,S,W]."""
        for index, count in enumerate(_chains(step).tolist()):
            row, start = first_row + index, int(step.write_index[index])
            tokens, states = step.input_ids[index, :count], hidden[index, :count]
            before = self.ahead.get(row)
            if before is not None and start < before.end:
                del self.ahead[row]  # written over, if only by the padding of a row that takes no part
            elif count and before is not None and start == before.end:
                start = before.start
                tokens, states = np.concatenate([before.tokens, tokens]), np.concatenate([before.hidden, states])
            if count:
                self.ahead[row] = _Ahead(start, tokens.copy(), states.copy())

    def take(self, step: Step, first_row: int, hidden: NDArray[np.float32]) -> NDArray[np.int64]:
        """How many of each row's first tokens in ``step`` the lower part has read, [B]; what it made of them goes into ``hidden`` [B,S,W].

        Nothing is kept any more: the pass will write over it.
        """
        known = np.zeros(len(step.input_ids), np.int64)
        for index, count in enumerate(_chains(step).tolist()):
            ahead = self.ahead.get(first_row + index)
            if ahead is not None and ahead.start == step.write_index[index]:
                length = min(count, len(ahead.tokens))
                differ = step.input_ids[index, :length] != ahead.tokens[:length]
                known[index] = differ.argmax() if differ.any() else length
                hidden[index, : known[index]] = ahead.hidden[: known[index]]
        self.ahead.clear()
        return known


class LowerEngine:
    """The lower part as an engine over the target's own storage: it drafts, and what it reads the target need not read again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.entry = engine.entry

    def new_storage(self, rows: int) -> KvStorage:
        return self._engine.new_storage(rows)

    def forward(self, step: Step, storage: KvStorage, first_row: int) -> NDArray[np.float32]:
        assert isinstance(storage, SplitStorage), "it drafts in the target's own rows"
        logits = self._engine.forward(step, storage.lower, first_row)
        assert self._engine.hidden is not None, "the lower part gives out what the upper one takes"
        storage.keep(step, first_row, self._engine.hidden)
        return logits

    @property
    def hidden(self) -> NDArray[np.float32] | None:
        return self._engine.hidden

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._engine.predict(features)


class SplitEngine:
    """Both parts as one engine; see ``runtime.engine.Engine``."""

    def __init__(self, entry: EngineEntry, lower: Engine, upper: Engine) -> None:
        self.entry = entry
        self.lower = LowerEngine(lower)
        self._parts = lower, upper
        self._reads_on = entry.probe is None or entry.probe.step_invariant
        self._hidden: NDArray[np.float32] | None = None

    @property
    def hidden(self) -> NDArray[np.float32] | None:
        return self._hidden

    def new_storage(self, rows: int) -> SplitStorage:
        lower, upper = self._parts
        return SplitStorage(lower.new_storage(rows), upper.new_storage(rows))

    def forward(self, step: Step, storage: KvStorage, first_row: int) -> NDArray[np.float32]:
        assert isinstance(storage, SplitStorage), "an engine takes the storage that it made"
        _, upper = self._parts
        states, width = self._read(step, storage, first_row), self.entry.hidden_size
        logits = upper.forward(replace(step, features=np.ascontiguousarray(states[..., -width:])), storage.upper, first_row)
        if self.entry.taps:
            above = [] if upper.hidden is None else [upper.hidden]
            self._hidden = np.concatenate([states[..., :-width], *above], axis=-1)
        return logits

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._parts[1].predict(features)

    def _read(self, step: Step, storage: SplitStorage, first_row: int) -> NDArray[np.float32]:
        """[B,S,W] what the lower part makes of every new token; it runs on those that it has not read ahead."""
        (batch, length), lower = step.input_ids.shape, self._parts[0]
        hidden = np.zeros((batch, length, self.entry.hidden_size * len(lower.entry.taps)), np.float32)
        known = storage.take(step, first_row, hidden)
        if not self._reads_on or not known.any():
            return self._run(step, storage, first_row)
        width = self.entry.padded(int((_own(step).sum(axis=1) - known).max()), batch)
        if width > 0:
            # A row that lacks fewer tokens than another, or than a pass needs, reads some anew, to the same bits.
            rest, columns = _columns(step, np.minimum(known, length - width), width)
            np.put_along_axis(hidden, columns[:, :, None], self._run(rest, storage, first_row), axis=1)
        return hidden

    def _run(self, step: Step, storage: SplitStorage, first_row: int) -> NDArray[np.float32]:
        lower = self._parts[0]
        lower.forward(replace(step, logit_rows=step.logit_rows[:, :0]), storage.lower, first_row)
        assert lower.hidden is not None, "the lower part gives out what the upper one takes"
        return lower.hidden


def part_entries(entry: EngineEntry) -> tuple[EngineEntry, EngineEntry]:
    """The lower and the upper part of a target that has both."""
    assert entry.lower is not None, "the engine is one file"
    cut = entry.lower.num_layers
    below, above = tuple(tap for tap in entry.taps if tap < cut), tuple(tap for tap in entry.taps if tap >= cut)
    lower = {"role": LOWER, "file": entry.lower.file, "lower": None, "num_layers": cut, "taps": (*below, cut)}
    upper = {"lower": None, "num_layers": entry.num_layers - cut, "first_layer": cut, "taps": above}
    return entry.model_copy(update=lower), entry.model_copy(update=upper)


def _own(step: Step) -> NDArray[np.bool_]:
    """[B,S] whether it is a token: each attends to itself, padding does not."""
    places = step.write_index[:, None] + np.arange(step.input_ids.shape[1])
    own: NDArray[np.bool_] = np.take_along_axis(step.attention_mask[:, 0], places[:, :, None], axis=2)[:, :, 0]
    return own


def _chains(step: Step) -> NDArray[np.int64]:
    """[B] how many of each row's first tokens follow one another: those that stand where they are written."""
    places = step.write_index[:, None] + np.arange(step.input_ids.shape[1])
    chained: NDArray[np.int64] = np.logical_and.accumulate(_own(step) & (step.position_ids == places), axis=1).sum(axis=1)
    return chained


def _columns(step: Step, first: NDArray[np.int64], width: int) -> tuple[Step, NDArray[np.int64]]:
    """The step over ``width`` new tokens of each row from ``first`` [B] on, and which those are, [B,width]."""
    columns = first[:, None] + np.arange(width)
    part = replace(
        step,
        input_ids=np.take_along_axis(step.input_ids, columns, axis=1),
        position_ids=np.take_along_axis(step.position_ids, columns, axis=1),
        write_index=step.write_index + first,
        attention_mask=np.take_along_axis(step.attention_mask, columns[:, None, :, None], axis=2),
    )
    return part, columns
