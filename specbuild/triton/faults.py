"""Errors on the wire: which code Triton is given for each of ours, and what a client makes of it.

A stream's error is a message without a code: Triton gives a code only to clients that ask for ``triton_grpc_error``, which crashes its
2.51 now and then. So the message begins with what kind it is.
"""

from __future__ import annotations

from typing import NamedTuple

from specbuild.errors import BusyError, CancelledError, RequestError, ServerError, SpecbuildError, TimedOutError, UsageError


class Fault(NamedTuple):
    """A row: what this error and those below it become."""

    error: type[SpecbuildError]
    code: str
    """Attribute of ``pb_utils.TritonError``."""
    kind: str
    """Opens the message."""


FAULTS = (
    Fault(TimedOutError, "CANCELLED", "deadline exceeded"),
    Fault(CancelledError, "CANCELLED", "cancelled"),
    Fault(BusyError, "UNAVAILABLE", "busy"),
    Fault(RequestError, "INVALID_ARG", "invalid argument"),
    Fault(UsageError, "INVALID_ARG", "invalid argument"),
    Fault(SpecbuildError, "INTERNAL", "internal error"),
)
"""The first row that fits is taken."""


def to_triton(error: SpecbuildError) -> tuple[str, str]:
    """(code, message) of an error of ours."""
    return _fault(error).code, f"{kind(error)}: {error}"


def kind(error: SpecbuildError) -> str:
    """What kind it is, in a word or two."""
    return _fault(error).kind


def _fault(error: SpecbuildError) -> Fault:
    return next(fault for fault in FAULTS if isinstance(error, fault.error))


def from_wire(message: str, status: str | None = None) -> SpecbuildError:
    """The error that a client raises for a stream's ``message``; ``status``: the call's own, where it broke off."""
    opening, _, rest = message.partition(": ")
    for fault in FAULTS:
        if status is None and opening == fault.kind and fault.error is not SpecbuildError:
            return fault.error(rest)
    if status == "StatusCode.DEADLINE_EXCEEDED":
        return TimedOutError(message)
    return ServerError(f"the server failed: {message}" if status is None else f"the server broke off ({status}): {message}")
