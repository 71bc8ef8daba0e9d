"""Errors on the wire: which code Triton is given for each of ours, and what a client makes of it."""

from __future__ import annotations

from typing import NamedTuple

from specbuild.errors import BusyError, CancelledError, RequestError, ServerError, SpecbuildError, TimedOutError, UsageError


class Fault(NamedTuple):
    """A row: what this error and those below it become."""

    error: type[SpecbuildError]
    code: str
    """Attribute of ``pb_utils.TritonError``."""
    status: str
    """The gRPC status that Triton makes of it."""
    prefix: str = ""
    """Opens the message where the status alone does not tell."""


FAULTS = (
    Fault(TimedOutError, "CANCELLED", "CANCELLED", "deadline exceeded: "),
    Fault(CancelledError, "CANCELLED", "CANCELLED"),
    Fault(BusyError, "UNAVAILABLE", "UNAVAILABLE", "busy: "),
    Fault(RequestError, "INVALID_ARG", "INVALID_ARGUMENT"),
    Fault(UsageError, "INVALID_ARG", "INVALID_ARGUMENT"),
    Fault(SpecbuildError, "INTERNAL", "INTERNAL"),
)
"""The first row that fits is taken."""


def to_triton(error: SpecbuildError) -> tuple[str, str]:
    """(code, message) of an error of ours."""
    fault = next(fault for fault in FAULTS if isinstance(error, fault.error))
    return fault.code, fault.prefix + str(error)


def from_grpc(status: str | None, message: str) -> SpecbuildError:
    """The error that a client raises for a gRPC ``status`` such as ``StatusCode.CANCELLED``."""
    name = (status or "").removeprefix("StatusCode.")
    for fault in FAULTS:
        if fault.status == name and fault.prefix in message and fault.error is not SpecbuildError:
            return fault.error(message.partition(fault.prefix)[2] if fault.prefix else message)
    if name == "DEADLINE_EXCEEDED":
        return TimedOutError(message)
    return ServerError(f"the server failed ({name or 'no status'}): {message}")
