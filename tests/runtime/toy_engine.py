"""A toy model whose every logit depends on all that its query attends to, an engine around it, and plain decoding without either.

A stale cache entry, a wrong mask, position or rollback changes the logits, so that comparing output finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specbuild.bundle import Bundle, EngineEntry, Manifest, Probe, StepCost, Vocabulary
from specbuild.errors import CapacityError
from specbuild.recipe import Recipe
from specbuild.runtime.engine import KvStorage, Step
from specbuild.runtime.generator import Generator
from specbuild.runtime.proposers.base import Proposer

VOCABULARY = 24
"""Ids that the tokenizer knows; each engine pads them by another number."""
EOS = 5
ASCII = 12
"""Ids below it are whole characters, those from it on are parts of longer ones."""
MAX_SEQ_LEN = 48
MAX_STEP = 8
Words = NDArray[np.uint64]


def mix(words: Words) -> Words:
    """A bijective scramble of 64-bit words."""
    words = (words ^ (words >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    return (words ^ (words >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)


@cache
def habits(seed: int) -> NDArray[np.float64]:
    """[V,V] logits of what follows each token."""
    return np.random.default_rng(seed).standard_normal((VOCABULARY, VOCABULARY)) * 2


@dataclass(frozen=True)
class ToyModel:
    """Logits = what often follows the last token + ``influence`` × a hash of everything attended to."""

    seed: int = 0
    influence: float = 1.0
    padding: int = 5
    """Ids past the vocabulary; their logits are the largest, so that nobody forgets to leave them out."""

    @property
    def vocab_size(self) -> int:
        return VOCABULARY + self.padding

    def entries(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Words:
        """What the cache keeps of a token."""
        return mix((tokens * 4096 + positions + 1).astype(np.uint64))

    def logits(self, attended: Words, token: NDArray[np.int64], position: NDArray[np.int64]) -> NDArray[np.float32]:
        """[…, V] from the sum of the attended entries, the query's token and position, each […]."""
        state = mix(attended ^ mix(position.astype(np.uint64) + np.uint64(77)))[..., None] + np.arange(self.vocab_size, dtype=np.uint64)
        noise = (mix(mix(state)) >> np.uint64(40)).astype(np.float64) / 2**23 - 1
        logits = np.full(noise.shape, 50, np.float32)
        logits[..., :VOCABULARY] = habits(self.seed)[token] + self.influence * noise[..., :VOCABULARY]
        return logits

    def after(self, tokens: Sequence[int], window: int | None = None) -> NDArray[np.float32]:
        """[V] the logits after ``tokens``, from the definition: no cache, no mask, no batch."""
        first = 0 if window is None else max(0, len(tokens) - window)
        seen = np.array(tokens[first:])
        entries = self.entries(seen, np.arange(first, len(tokens)))
        return self.logits(entries.sum(keepdims=True), seen[-1:], np.array([len(tokens) - 1]))[0]


class ToyStorage:
    """Entries [rows, view]; whatever was never written, or died in a resize, is garbage."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows, self.view, self.capacity = rows, 0, capacity
        self.random = np.random.default_rng(99)
        self.entries: Words = np.zeros((rows, 0), np.uint64)

    def resize(self, view: int, lengths: NDArray[np.int64]) -> None:
        if view > self.capacity:
            raise CapacityError(f"{view} positions of {self.capacity}")
        entries = self.random.integers(0, 2**63, (self.rows, view)).astype(np.uint64)
        for row, length in enumerate(lengths):
            entries[row, :length] = self.entries[row, :length]
        self.entries, self.view = entries, view

    def copy_row(self, source: KvStorage, row: int, target: int, length: int) -> None:
        assert isinstance(source, ToyStorage)
        self.entries[target, :length] = source.entries[row, :length]

    def save(self, row: int, length: int) -> Words:
        return self.entries[row, :length].copy()

    def restore(self, row: int, saved: Words, length: int) -> None:
        self.entries[row, :length] = saved[:length]

    def move_tokens(self, row: int, sources: NDArray[np.int64], start: int) -> None:
        self.entries[row, start : start + len(sources)] = self.entries[row, sources]

    def touch(self) -> None:
        """Nothing is taken late."""


@dataclass
class ToyEngine:
    """The engine: checks what a real one would crash or be silently wrong on. ``steps`` are the passes it has run."""

    model: ToyModel
    entry: EngineEntry
    steps: list[Step] = field(default_factory=list)

    @property
    def hidden(self) -> None:
        """It gives none out."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        raise AssertionError("no head")

    def new_storage(self, rows: int) -> ToyStorage:
        return ToyStorage(rows, self.entry.capacity)

    def forward(self, step: Step, storage: KvStorage, first_row: int) -> NDArray[np.float32]:
        assert isinstance(storage, ToyStorage)
        batch, count = step.input_ids.shape
        rows = np.arange(first_row, first_row + batch)
        assert count <= self.entry.max_prefill
        assert first_row + batch <= storage.rows
        assert step.attention_mask.shape == (batch, 1, count, storage.view)
        assert step.attention_mask.any(-1).all(), "a query that attends to nothing gives NaN"
        assert (step.write_index + count <= storage.view).all(), "written past the view"
        assert (step.logit_rows < count).all()
        places = step.write_index[:, None] + np.arange(count)
        storage.entries[rows[:, None], places] = self.model.entries(step.input_ids, step.position_ids)
        attended = np.where(step.attention_mask[:, 0], storage.entries[rows, None, :], np.uint64(0)).sum(-1)
        self.steps.append(step)
        attended = attended + self._wobble(batch, count, storage.view)
        if self.entry.probe is not None and self.entry.probe.tree_difference:
            attended = attended + (places - step.position_ids).astype(np.uint64)  # tokens between it and its ancestors
        pick = np.arange(batch)[:, None], step.logit_rows
        return self.model.logits(attended[pick], step.input_ids[pick], step.position_ids[pick])

    def _wobble(self, batch: int, count: int, view: int) -> np.uint64:
        """What an engine that is not bit-invariant adds; one that is adds nothing."""
        probe = self.entry.probe
        if probe is None:
            return np.uint64(0)
        parts = (probe.step_invariant, count), (probe.batch_invariant, batch), (probe.view_invariant, view)
        return np.uint64(sum(0 if invariant else value * 1000**place for place, (invariant, value) in enumerate(parts)))


def invariant(tree_difference: float | None = 0.0, **changes: bool) -> Probe:
    flags = {"step_invariant": True, "batch_invariant": True, "view_invariant": True} | changes
    costs = tuple(StepCost(batch=b, step=s, context=1, seconds=0.01 * b + 0.001 * s) for b in (1, 4) for s in (1, MAX_STEP))
    return Probe(**flags, step_costs=costs, parity=None, tree_difference=tree_difference)


def toy_entry(role: str, model: ToyModel, **changes: object) -> EngineEntry:
    fields: dict[str, object] = {
        "role": role,
        "file": role,
        "backend": "onnxruntime",
        "flavour": "toy",
        "version": "1",
        "precision": "float32",
        "kv_dtype": "float32",
        "vocab_size": model.vocab_size,
        "hidden_size": 1,
        "num_layers": 1,
        "num_kv_heads": 1,
        "head_dim": 1,
        "sliding_window": None,
        "max_batch_size": 4,
        "max_seq_len": MAX_SEQ_LEN,
        "capacity": MAX_SEQ_LEN + MAX_STEP - 1,
        "static_view": False,
        "max_step": MAX_STEP,
        "max_prefill": 10,
        "probe": invariant(),
    }
    return EngineEntry.model_validate(fields | changes)


@dataclass
class Toys:
    """Makes generators over toy engines; ``target`` resembles ``middle``, and less so ``draft``."""

    folder: Path
    target: ToyModel = ToyModel()
    draft: ToyModel = ToyModel(influence=0.4, padding=9)
    middle: ToyModel = ToyModel(influence=0.8, padding=2)
    """A draft model between the two."""
    engines: dict[str, ToyEngine] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, ToyModel]:
        """By role."""
        return {"target": self.target, "draft": self.draft, "draft.middle": self.middle}

    def generator(
        self,
        *,
        batch: int = 4,
        verification: str | None = None,
        lossy: str | None = None,
        proposers: dict[str, Proposer] | None = None,
        interactive: bool = False,
        remember: int = 0,
        settings: dict[str, Any] | None = None,
        **changes: object,
    ) -> Generator:
        """``changes`` to all engines' entries."""
        entries = tuple(toy_entry(role, model, **changes) for role, model in self.models.items())
        speculation = {
            "method": "draft_model",
            "draft": {},
            "drafts": {"middle": {}},
            "cascade": ["ngram", "draft", "middle"],
            "lossy": lossy,
        }
        recipe = {"name": "toy", "checkpoint": "toy", "speculation": speculation | (settings or {})}
        manifest = Manifest(
            digest="",
            recipe=Recipe.model_validate(recipe),
            checkpoints={},
            tools={},
            vocabulary=Vocabulary(size=VOCABULARY, bos_token_id=None, eos_token_ids=(EOS,), pad_token_id=None),
            engines=entries,
            files={},
        )
        options: dict[str, Any] = {"verification": verification, "proposers": proposers, "interactive": interactive}
        return Generator(Bundle(self.folder, manifest), batch=batch, remember=remember, **options)

    def load(self, folder: Path, entry: EngineEntry, *, threads: int | None = None) -> ToyEngine:
        self.engines[entry.role] = ToyEngine(self.models[entry.role], entry)
        return self.engines[entry.role]


def byte_tokenizer() -> Tokenizer:
    """A byte a token: twelve characters from '!' on, then parts of longer ones, which rounds come to split."""
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    [(symbols, _)] = bytewise.pre_tokenize_str("!\"#$%&'()*+,é€🙂ÿłあ")
    ids = {symbol: index for index, symbol in enumerate(dict.fromkeys(symbols))}
    assert len(ids) == VOCABULARY
    made = Tokenizer(models.BPE(vocab=ids, merges=[]))
    made.pre_tokenizer, made.decoder = bytewise, decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    """Import it beside the tests that use it."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "tokenizer").mkdir()
    byte_tokenizer().save(str(folder / "tokenizer" / "tokenizer.json"))
    patch = pytest.MonkeyPatch()
    made = Toys(folder)
    patch.setattr("specbuild.runtime.generator.load", made.load)
    patch.setattr("specbuild.runtime.proposers.load", made.load)
    yield made
    patch.undo()
