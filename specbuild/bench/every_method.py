"""What proofs run on: a recipe for every method there is, all of one checkpoint's own builds.

Draft models are the target in fewer bits. A head that nobody has trained is what training would start from (the target's last layer,
silenced): most of its drafts are wrong, which no proof minds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from specbuild.builders.build import build
from specbuild.builders.preparation import Preparation, prepare
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.probe import probe
from specbuild.recipe import HeadRole, Precision, Recipe

METHODS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {},
    "suffix": {},
    "draft_model": {},
    "mtp": {},
    "eagle3": {},
    "medusa": {},
    "early_exit": {},
    "cascade of 2": {"method": "cascade", "cascade": ("ngram", "draft")},
    "cascade of 3": {"method": "cascade", "cascade": ("ngram", "draft", "middle")},
    "hybrid": {"hybrid_retrieval": "suffix", "hybrid_model": "eagle3"},
    "merged": {"merged": ("ngram", "draft", "eagle3")},
}
"""Name → keys of ``speculation`` that differ from those of a method of that name. A cascade's number counts the models of a round."""
DRAFTS: Mapping[str, Any] = {"draft": {"precision": "int4"}, "drafts": {"middle": {"precision": "int8"}}}
EXIT_BELOW = 2
"""Layers that early exit leaves to the pass that verifies: its drafts are to be right often, not cheap."""
LIMITS: Mapping[str, int] = {"max_batch_size": 8, "max_seq_len": 2048}
MAX_DRAFT_LEN = 7


@dataclass(frozen=True)
class Subject:
    """A checkpoint and heads for it."""

    checkpoint: str
    layers: int
    heads: Mapping[HeadRole, str]
    trained: tuple[HeadRole, ...] = ()
    probed: bool = True
    """Its engines are measured when they are built, and padded where their bits are not invariant; it takes minutes."""

    def bundle(self, precision: Precision, method: str) -> Bundle:
        """See ``recipe``; built in the default store if need be."""
        return build(self.recipe(precision, method), store=Store.default(), probe=probe if self.probed else None).bundle

    def recipe(self, precision: Precision, method: str) -> Recipe:
        """A target of ``precision`` that drafts by ``method``, one of ``METHODS``. All but early exit, which cuts the target in two,
        are of one bundle."""
        means: Mapping[str, Any] = {**DRAFTS, "heads": {role: {"checkpoint": head} for role, head in self.heads.items()}}
        name = "proof"
        if method == "early_exit":
            means, name = {"early_exit": {"layers": max(1, self.layers - EXIT_BELOW)}}, "proof-exit"
        document = {
            "name": f"{name}-{precision}",
            "checkpoint": self.checkpoint,
            "target": {"precision": precision, **LIMITS},
            "speculation": {"method": method, "max_draft_len": MAX_DRAFT_LEN, "draft_len": 1, **means, **METHODS[method]},
        }
        return Recipe.from_mapping(document, origin=__name__)


@contextmanager
def subject(checkpoint: str, trained: Path | None = None, probed: bool = True) -> Iterator[Subject]:
    """``checkpoint`` with the heads that the folder ``trained`` has in mtp, eagle3 and medusa; the others are made, and gone afterwards."""
    target = prepare(Recipe.from_mapping({"name": "proof", "checkpoint": checkpoint}, origin=__name__))
    with tempfile.TemporaryDirectory() as made:
        roles: tuple[HeadRole, ...] = get_args(HeadRole)
        given = {role: str(trained / role) for role in roles if trained is not None and (trained / role).is_dir()}
        heads = {role: given.get(role) or str(_untrained(role, target, Path(made) / role)) for role in roles}
        yield Subject(checkpoint, target.models["target"].spec.num_layers, heads, tuple(given), probed)


def _untrained(role: HeadRole, target: Preparation, folder: Path) -> Path:
    """A head of the first quarter of the vocabulary, in its published layout."""
    import numpy as np

    from specbuild.builders.training.export import export
    from specbuild.builders.training.initial import initial
    from specbuild.builders.training.specs import head_spec

    facts = target.models["target"]
    ids = np.arange(facts.spec.vocab_size // 4)
    spec = head_spec(role, facts.spec, len(ids))
    first = initial(spec, target.weights["target"], facts.spec.num_layers, seed=0)
    export(folder, spec, first, ids, facts.config, {"steps": 0})
    return folder
