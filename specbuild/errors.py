"""Every error that a user can cause, as one tree.

A message says what was wrong, the value seen and what to do. The class decides the exit code:
1 failed, 2 usage or configuration, 3 the environment lacks something, 4 a verification did not match.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class SpecbuildError(Exception):
    """Root of the tree. Raised itself only through its subclasses."""

    exit_code: ClassVar[int] = 1


class UsageError(SpecbuildError):
    """What was asked for makes no sense: a bad option, argument or file of prompts."""

    exit_code: ClassVar[int] = 2


class RecipeError(UsageError):
    """A recipe cannot be read, has an unknown key or an impossible value."""


class RequestError(UsageError):
    """A generation request is outside what the engine or the sampling rules allow."""


class PreflightError(UsageError):
    """Target, draft and recipe cannot work together; found before anything is compiled."""


class UnsupportedError(UsageError):
    """A model family, configuration key or tensor type that specbuild does not build."""


class CheckpointError(SpecbuildError):
    """A checkpoint is missing, truncated, corrupt or incomplete."""


class BuildError(SpecbuildError):
    """A build could not be finished: the compiler refused, the disk is full, the lock is held."""


class BundleError(SpecbuildError):
    """A bundle is missing, incomplete or cannot be read."""


class EnvironmentLacksError(SpecbuildError):
    """This machine lacks a library, a GPU or the right version of one."""

    exit_code: ClassVar[int] = 3


class BusyError(SpecbuildError):
    """The queue of a server is full; the same request may succeed later."""


class CancelledError(SpecbuildError):
    """The client has gone or asked to stop, or a round that the request shared with others broke off."""


class TimedOutError(SpecbuildError):
    """A request's own time limit passed before it was done."""


class ServerError(SpecbuildError):
    """A server that is not there, broke off, or failed by itself."""


class VerificationError(SpecbuildError):
    """Two things that must be the same are not: digests, versions of a bundle, generated tokens."""

    exit_code: ClassVar[int] = 4


class CapacityError(RequestError):
    """A write would pass the end of a KV cache, or no slot is free."""


def close_match(word: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` when a known word is close to ``word``, else the list of what there is."""
    choices = sorted(known)
    near = difflib.get_close_matches(word, choices, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(choices)}."
