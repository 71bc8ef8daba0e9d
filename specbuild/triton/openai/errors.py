"""Errors as OpenAI's clients know them: a status, and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any, NamedTuple

from specbuild.errors import BusyError, CancelledError, RequestError, ServerError, SpecbuildError, TimedOutError, UsageError

RETRY_SECONDS = 1
INVALID = "invalid_request_error"


class RefusedError(RequestError):
    """A request that the door itself does not take."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class Row(NamedTuple):
    """What this error and those below it become."""

    error: type[SpecbuildError]
    status: int
    type: str
    code: str | None


ROWS = (
    Row(TimedOutError, 504, "timeout_error", "deadline_exceeded"),
    Row(CancelledError, 503, "server_error", "cancelled"),
    Row(BusyError, 429, "rate_limit_error", "rate_limit_exceeded"),
    Row(UsageError, 400, INVALID, None),
    Row(ServerError, 503, "server_error", "unavailable"),
    Row(SpecbuildError, 500, "server_error", None),
)
"""The first row that fits is taken."""


def status(error: SpecbuildError) -> int:
    """Of the answer, where it has not begun."""
    return error.status if isinstance(error, RefusedError) else _row(error).status


def body(error: SpecbuildError) -> dict[str, Any]:
    """Of the answer, or of the last event of one that had begun."""
    if isinstance(error, RefusedError):
        return shape(str(error), INVALID, error.param, error.code)
    row = _row(error)
    return shape(str(error), row.type, code=row.code)


def shape(message: str, type: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The object that every error is."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def _row(error: SpecbuildError) -> Row:
    return next(row for row in ROWS if isinstance(error, row.error))
