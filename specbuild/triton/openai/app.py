"""The routes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specbuild.bundle import MANIFEST, Bundle
from specbuild.errors import SpecbuildError
from specbuild.runtime.tokenizer import Tokenizer

from .. import AsyncClient
from ..wire import MODEL, Answer, Chunk
from . import errors, requests
from .answers import Writer
from .errors import RefusedError
from .events import Emit, Events
from .forms import ChatForm, CompletionForm, Object
from .job import unless_gone

MAX_BODY = 8 * 2**20
"""Bytes."""


class Endpoints:
    """Answers OpenAI's requests by asking the model ``model`` of the Triton server at ``url``, which serves ``bundle``."""

    def __init__(self, bundle: Bundle, url: str, model: str = MODEL) -> None:
        self._url = url
        self._model = model
        self._names = (model, bundle.path.name, bundle.manifest.recipe.name)
        self._fingerprint = bundle.path.name
        self._created = int((bundle.path / MANIFEST).stat().st_mtime)
        self._max_seq_len = bundle.engine("target").max_seq_len
        self._tokenizer = Tokenizer(bundle.path / "tokenizer", bundle.manifest.vocabulary)
        self._token_bytes = functools.cache(self._tokenizer.token_bytes)

    def app(self) -> Starlette:
        """As ASGI has it; the client of the server lives as long as it."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[dict[str, AsyncClient]]:
            async with AsyncClient(self._url, self._model) as client:
                yield {"client": client}

        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._one_model),
                Route("/health", self._health),
            ],
            exception_handlers={SpecbuildError: _failed, HTTPException: _refused, Exception: _broken},
            lifespan=lifespan,
        )

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, requests.ChatRequest, ChatForm)

    async def _complete(self, request: Request) -> Response:
        return await self._answer(request, requests.CompletionRequest, CompletionForm)

    async def _answer(self, request: Request, kind: type[requests.Request], form: type[ChatForm] | type[CompletionForm]) -> Response:
        asked = kind.read(await _body(request))
        self._check(asked.model)
        # In a thread: of a long prompt it takes long enough to be felt by the streams of others.
        job = await asyncio.to_thread(asked.job, self._tokenizer, self._max_seq_len)
        writer = Writer(form(self._token_bytes), job, asked.model, self._fingerprint)
        client: AsyncClient = request.state.client
        if not asked.stream:
            return JSONResponse(writer.whole(await unless_gone(request.receive, job.answers(client))))

        async def produce(emit: Emit) -> None:
            async def take(index: int, new: Chunk | Answer) -> None:
                if (part := writer.part(index, new)) is not None:
                    await emit(part)

            answers = await job.stream(client, take)
            if asked.stream_options.include_usage:
                await emit(writer.used(answers))

        return Events(produce)

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card(self._model)]})

    async def _one_model(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        self._check(name)
        return JSONResponse(self._card(name))

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if await request.state.client.ready() else 503)

    def _card(self, name: str) -> Object:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "specbuild", "max_model_len": self._max_seq_len}

    def _check(self, name: str) -> None:
        if name not in self._names:
            known = ", ".join(dict.fromkeys(self._names))
            raise RefusedError(f"there is no model {name!r:.60} here; there is: {known}", status=404, param="model", code="model_not_found")


async def _body(request: Request) -> bytes:
    """All of it, unless it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise RefusedError(f"the body has more than {MAX_BODY} bytes; shorten it", status=413)
    return bytes(body)


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, SpecbuildError), "registered for it"
    status = errors.status(error)
    headers = {"retry-after": str(errors.RETRY_SECONDS)} if status in (429, 503) else None
    return JSONResponse(errors.body(error), status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException), "registered for it"
    what = errors.shape(f"{request.method} {request.url.path}: {error.detail}", errors.INVALID)
    return JSONResponse(what, error.status_code, error.headers)


async def _broken(_: Request, error: Exception) -> Response:
    """A fault of ours, which goes to the log."""
    return JSONResponse(errors.shape(f"internal error: {type(error).__name__}", "server_error"), 500)
