"""A door for OpenAI's clients: its HTTP API in front of a served bundle, which is asked over gRPC like by any other client."""

from __future__ import annotations

import importlib.util

from specbuild.errors import EnvironmentLacksError

LIBRARIES = ("starlette", "uvicorn")
INSTALL = "pip install 'specbuild[openai]'"


def require() -> None:
    """Find out whether the door's libraries are there, before it is imported.

    Raises:
        EnvironmentLacksError: names what is missing and the remedy.
    """
    missing = [library for library in LIBRARIES if importlib.util.find_spec(library) is None]
    if missing:
        raise EnvironmentLacksError(f"the OpenAI door needs {' and '.join(missing)}, not installed here; {INSTALL}")
