"""Proposers by the name of their method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType

from specbuild.bundle import Bundle
from specbuild.errors import RequestError, close_match

from ..engines import load
from ..model import CachedModel
from .base import Proposer
from .draft_model import DraftModelProposer
from .ngram import NgramProposer


@dataclass(frozen=True)
class Means:
    """What a proposer may take."""

    rows: int
    """Sequences at a time."""
    threads: int | None = None
    remember: int = 0
    resident: bool = False
    """See ``CachedModel``."""


Factory = Callable[[Bundle, Means], Proposer]


def _ngram(bundle: Bundle, means: Means) -> Proposer:
    speculation = bundle.manifest.recipe.speculation
    return NgramProposer(speculation.ngram_min, speculation.ngram_max)


def _draft_model(bundle: Bundle, means: Means) -> Proposer:
    engine = load(bundle.path, bundle.engine("draft"), threads=means.threads)
    # The output does not depend on the bits of a draft: its passes need no padding.
    return DraftModelProposer(CachedModel(engine, means.rows, padded=False, remember=means.remember, resident=means.resident))


METHODS: Mapping[str, Factory] = MappingProxyType({"ngram": _ngram, "draft_model": _draft_model})
"""Every method but ``off``."""


class Proposers:
    """The proposers of a bundle, each made (and its engine loaded) when it is first asked for."""

    def __init__(self, bundle: Bundle, means: Means, given: Mapping[str, Proposer]) -> None:
        """``given``: method → proposer, beside those of the bundle."""
        self._bundle, self._means = bundle, means
        self._made = dict(given)
        self._making = Lock()

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
                    self._made[method] = METHODS[method](self._bundle, self._means)
        return self._made[method]

    def made(self) -> Mapping[str, Proposer]:
        """Those that have been asked for."""
        return MappingProxyType(self._made)
