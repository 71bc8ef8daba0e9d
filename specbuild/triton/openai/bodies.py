"""What bodies of requests have in common: JSON into strict models, whose errors are one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from specbuild.errors import close_match

from .errors import RefusedError

SHOWN = 60
"""Characters of a value in an error."""


class Body(BaseModel):
    """A JSON object. A field that is null is one that is not there; one that is not known is an error."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Fields of OpenAI's that mean nothing here, and the values by which they ask for nothing."""
    IGNORED: ClassVar[frozenset[str]] = frozenset()
    """Fields of OpenAI's that do not change an answer."""
    ELSEWHERE: ClassVar[Mapping[str, str]] = {}
    """Fields that are in the wrong place here, and the right one."""

    @model_validator(mode="before")
    @classmethod
    def _own_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise wrong(f"it is {data!r:.{SHOWN}}, but must be a JSON object")
        for name, value in data.items():
            if name in cls.UNSUPPORTED:
                if value is not None and value not in cls.UNSUPPORTED[name]:
                    raise wrong(f"{name} is {value!r:.{SHOWN}}, which this server does not do; leave it out", name)
            elif name in cls.ELSEWHERE:
                raise wrong(f"{name!r} belongs into {cls.ELSEWHERE[name]!r}", name)
            elif name not in cls.model_fields and name not in cls.IGNORED:
                raise wrong(f"{name[:SHOWN]!r} is no field here.{close_match(name, cls.model_fields)}", name)
        return {name: value for name, value in data.items() if name in cls.model_fields and value is not None}

    @classmethod
    def read(cls, text: bytes) -> Self:
        """From the body of a request.

        Raises:
            RefusedError: it is not JSON, or not such an object; names the field, and what is wrong with it.
        """
        try:
            data = from_json(text, allow_inf_nan=False)
        except ValueError as error:
            raise RefusedError(f"the body is not JSON: {error}") from None
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _refusal(error) from None


def wrong(message: str, field: str | None = None) -> PydanticCustomError:
    """What a validator raises; ``field``: of the value that it looks at."""
    return PydanticCustomError("refused", "{message}", {"message": message, "field": field})


def _refusal(error: ValidationError) -> RefusedError:
    """The first of its errors, as a sentence."""
    first = error.errors(include_url=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
    if first["type"] == "missing":
        return RefusedError(f"{where} is missing", param=where)
    if first["type"] == "refused":
        field = first["ctx"]["field"]
        param = ".".join(filter(None, [where, field])) or None
        return RefusedError(f"{where}: {first['msg']}" if where else first["msg"], param=param)
    return RefusedError(f"{where} is {first['input']!r:.{SHOWN}}: {first['msg'][0].lower()}{first['msg'][1:]}", param=where)
