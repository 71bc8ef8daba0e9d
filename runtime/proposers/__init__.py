"""Proposers by the name of their method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def create(method: str, bundle: Bundle, rows: int, threads: int | None, remember: int = 0) -> Proposer:
    """The proposer of ``method`` for ``rows`` sequences.

    Raises:
        RequestError: there is no such method.
        BundleError: the bundle has no engine for it.
    """
    if method not in METHODS:
        raise RequestError(f"speculation method {method!r} is unknown.{close_match(method, ['off', *METHODS])}")
    return METHODS[method](bundle, rows, threads, remember)
