"""Serving on Triton: the model, its server, and clients of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .client import Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> object:
    """The clients, imported when they are asked for: the model in the server needs no gRPC."""
    if name == "Client":
        from .client import Client

        return Client
    if name == "AsyncClient":
        from .async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
