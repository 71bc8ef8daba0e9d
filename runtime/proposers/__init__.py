"""Proposers by the name of their method, and how those that are made of others are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import RLock
from types import MappingProxyType
from typing import cast

from specbuild.bundle import Bundle
from specbuild.errors import RequestError, close_match
from specbuild.recipe import LOWER, MERGEABLE, SpeculationSection, draft_role

from ..engine import Engine
from ..engines import load
from ..model import CachedModel
from ..tokenizer import Tokenizer
from .base import Proposer, Retriever
from .draft_model import DraftModelProposer
from .early_exit import EarlyExitProposer
from .hybrid import HybridProposer
from .joint import Joint
from .layer_head import LayerHeadProposer
from .medusa import MedusaProposer
from .merged import MergedProposer
from .ngram import NgramProposer
from .retokenized import RetokenizedProposer
from .spelling import Spelling
from .suffix import SuffixProposer


@dataclass(frozen=True)
class Means:
    """What a proposer may take."""

    rows: int
    """Sequences at a time."""
    threads: int | None = None
    remember: int = 0
    resident: bool = False
    """See ``CachedModel``."""
    target: CachedModel | None = None
    """What verifies; early exit drafts in its rows. None: there is none here."""


class Proposers:
    """The proposers of a bundle, each made (and its engines loaded) when it is first asked for.

    One that is made of others shares them with those who ask for them by name: a sequence is known to one method alone.
    """

    def __init__(self, bundle: Bundle, means: Means, given: Mapping[str, Proposer]) -> None:
        """``given``: method → proposer, beside those of the bundle."""
        self._bundle, self._means = bundle, means
        self._made = dict(given)
        self._engines: dict[str, Engine] = {}
        self._making = RLock()

    @property
    def speculation(self) -> SpeculationSection:
        """How the bundle's recipe wants them."""
        return self._bundle.manifest.recipe.speculation

    def __getitem__(self, method: str) -> Proposer:
        """The proposer of ``method``.

        Raises:
            RequestError: there is no such method.
            BundleError: the bundle has no engine for it.
        """
        if method not in self._made:
            if method not in METHODS:
                raise RequestError(f"speculation method {method!r} is unknown.{close_match(method, ['off', *METHODS])}")
            with self._making:  # requests come from any thread; a second proposer would not know the sequences of the first
                if method not in self._made:
                    self._made[method] = METHODS[method](self)
        return self._made[method]

    def model(self, role: str) -> CachedModel:
        """A cache of its own over the engine of ``role``, which is loaded once.

        Raises:
            BundleError: the bundle has no such engine.
        """
        means = self._means
        # The output does not depend on the bits of a draft: its passes need no padding.
        return CachedModel(self.engine(role), means.rows, padded=False, remember=means.remember, resident=means.resident)

    def engine(self, role: str) -> Engine:
        """The engine of ``role``, loaded once.

        Raises:
            BundleError: the bundle has no such engine.
        """
        if role not in self._engines:
            self._engines[role] = load(self._bundle.path, self._bundle.engine(role), threads=self._means.threads)
        return self._engines[role]

    @property
    def split_target(self) -> CachedModel:
        """The target, compiled in two.

        Raises:
            BundleError: it is one engine.
        """
        self._bundle.engine(LOWER)
        assert self._means.target is not None, "early exit drafts beside a target"
        return self._means.target

    def drafter(self, role: str, inner: Proposer | None = None) -> Proposer:
        """The draft model of ``role``, for which ``inner`` drafts; translated where its vocabulary is its own.

        Raises:
            BundleError: the bundle has no such engine.
        """
        model = DraftModelProposer(self.model(role), inner)
        entry, path, known = self._bundle.engine(role), self._bundle.path, self._bundle.manifest.vocabulary
        if entry.vocabulary is None:
            return model
        own = Spelling(Tokenizer(path / entry.tokenizer, entry.vocabulary), entry.vocabulary)
        target = Spelling(Tokenizer(path / self._bundle.engine("target").tokenizer, known), known)
        return RetokenizedProposer(model, own, target, entry.max_seq_len)

    def joint(self, role: str) -> Joint:
        """What joins the head ``role`` to the target.

        Raises:
            BundleError: the bundle has no such head.
        """
        return Joint.of(self._bundle, role)

    def made(self) -> Mapping[str, Proposer]:
        """Those that have been asked for."""
        return MappingProxyType(self._made)


Factory = Callable[[Proposers], Proposer]


def _ngram(proposers: Proposers) -> Proposer:
    return NgramProposer(proposers.speculation.ngram_min, proposers.speculation.ngram_max)


def _suffix(proposers: Proposers) -> Proposer:
    return SuffixProposer(proposers.speculation.suffix_history)


def _draft_model(proposers: Proposers) -> Proposer:
    return proposers.drafter("draft")


def _mtp(proposers: Proposers) -> Proposer:
    return LayerHeadProposer(proposers.model("mtp"), proposers.joint("mtp"))


def _eagle3(proposers: Proposers) -> Proposer:
    return LayerHeadProposer(proposers.model("eagle3"), proposers.joint("eagle3"))


def _medusa(proposers: Proposers) -> Proposer:
    return MedusaProposer(proposers.engine("medusa"), proposers.joint("medusa"))


def _early_exit(proposers: Proposers) -> Proposer:
    return EarlyExitProposer(proposers.split_target)


def _cascade(proposers: Proposers) -> Proposer:
    """Each model of the list drafts for the next; the first of the list may be any method."""
    first, *others = proposers.speculation.cascade
    made = proposers[first] if first in METHODS else proposers.drafter(draft_role(first))
    for name in others:
        made = proposers.drafter(draft_role(name), made)
    return made


def _hybrid(proposers: Proposers) -> Proposer:
    speculation = proposers.speculation
    retrieval = cast(Retriever, proposers[speculation.hybrid_retrieval])  # those that the recipe allows
    return HybridProposer(retrieval, proposers[speculation.hybrid_model], speculation.hybrid_min_match)


def _merged(proposers: Proposers) -> Proposer:
    sources = proposers.speculation.merged
    return MergedProposer(*(proposers[name] if name in MERGEABLE else proposers.drafter(draft_role(name)) for name in sources))


METHODS: Mapping[str, Factory] = MappingProxyType(
    {
        "ngram": _ngram,
        "suffix": _suffix,
        "draft_model": _draft_model,
        "mtp": _mtp,
        "eagle3": _eagle3,
        "medusa": _medusa,
        "early_exit": _early_exit,
        "cascade": _cascade,
        "hybrid": _hybrid,
        "merged": _merged,
    }
)
"""Every method but ``off``."""


def available(bundle: Bundle) -> list[str]:
    """Those of ``METHODS`` that ``bundle`` has the engines for."""
    roles = {engine.role for engine in bundle.manifest.engines}
    return [method for method in METHODS if roles.issuperset(bundle.manifest.recipe.speculation.roles(method))]
