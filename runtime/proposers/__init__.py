"""Proposers by the name of their method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from types import MappingProxyType

from specbuild.bundle import Bundle
from specbuild.errors import RequestError, close_match

from ..engines import load
from ..model import CachedModel
from .base import Proposer
from .draft_model import DraftModelProposer
from .ngram import NgramProposer

Factory = Callable[[Bundle, int, int | None, int], Proposer]
"""(bundle, rows, threads, tokens to remember) → proposer."""


def _ngram(bundle: Bundle, rows: int, threads: int | None, remember: int) -> Proposer:
    speculation = bundle.manifest.recipe.speculation
    return NgramProposer(speculation.ngram_min, speculation.ngram_max)


def _draft_model(bundle: Bundle, rows: int, threads: int | None, remember: int) -> Proposer:
    # The output does not depend on the bits of a draft: its passes need no padding.
    return DraftModelProposer(CachedModel(load(bundle.path, bundle.engine("draft"), threads=threads), rows, padded=False))


METHODS: Mapping[str, Factory] = MappingProxyType({"ngram": _ngram, "draft_model": _draft_model})
"""Every method but ``off``."""


class Proposers:
    """The proposers of a bundle for ``rows`` sequences, each made (and its engine loaded) when it is first asked for."""

    def __init__(self, bundle: Bundle, rows: int, threads: int | None, given: Mapping[str, Proposer], remember: int = 0) -> None:
        """``given``: method → proposer, beside those of the bundle. ``remember``: see ``CachedModel``."""
        self._bundle, self._rows, self._threads, self._remember = bundle, rows, threads, remember
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
                    self._made[method] = METHODS[method](self._bundle, self._rows, self._threads, self._remember)
        return self._made[method]

    def made(self) -> Mapping[str, Proposer]:
        """Those that have been asked for."""
        return MappingProxyType(self._made)
