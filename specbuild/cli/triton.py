"""``specbuild triton``: a bundle as a model repository, checked, served and measured."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from specbuild.cli.main import NounGroup
from specbuild.cli.output import JSON_OPTION, print_json, print_table, progress, say
from specbuild.cli.sources import PROMPTS_HELP, SAMPLING_OPTIONS, sampling_params, with_options
from specbuild.errors import UsageError

BUNDLE_HELP = "A bundle's folder, or its name in the store."
SERVER_OPTIONS = (
    click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads of an engine."),
    click.option("--batch", type=click.IntRange(min=1), metavar="B", help="Requests that run at a time; default: as built."),
    click.option("--queue-limit", type=click.IntRange(min=1), metavar="N", help="Requests that may wait before more are refused."),
    click.option("--remember", type=click.IntRange(min=0), metavar="N", help="Tokens of past texts whose KV is kept."),
)
URL_OPTION = click.option("--url", default="127.0.0.1:8001", show_default=True, metavar="HOST:PORT", help="The server's gRPC.")
MODEL_OPTION = click.option("--model", default="specbuild", show_default=True, metavar="NAME", help="The model's name on the server.")


@click.group(cls=NounGroup)
def command() -> None:
    """`serve` does all of it for one bundle; `render` and `check` are for servers that run elsewhere."""


@command.command()
@click.option("-b", "--bundle", "bundles", multiple=True, required=True, metavar="BUNDLE", help=f"{BUNDLE_HELP} Repeated: a model each.")
@click.option(
    "--name", "names", multiple=True, metavar="NAME", help="Of the model, once for each bundle; default: specbuild, or the bundles'."
)
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True, help="Where instances run.")
@click.option("--count", type=int, default=1, show_default=True, metavar="N", help="Instances; each has engines of its own.")
@click.option("--gpu", "gpus", type=int, multiple=True, metavar="ID", help="A GPU for instances; may be repeated.")
@with_options(*SERVER_OPTIONS)
@click.argument("out", type=click.Path(path_type=Path))
def render(
    bundles: tuple[str, ...], names: tuple[str, ...], device: str, count: int, gpus: tuple[int, ...], out: Path, **settings: int | None
) -> None:
    """Write a model repository into OUT."""
    from specbuild.triton.render import ModelSettings
    from specbuild.triton.render import render as write

    paths = [_bundle(bundle) for bundle in bundles]
    if names and len(names) != len(paths):
        raise UsageError(f"{len(names)} names for {len(paths)} bundles; give one for each, or none")
    named = names or (["specbuild"] if len(paths) == 1 else [path.name for path in paths])
    parameters = _parameters(settings)
    models = [
        ModelSettings(name, path, device="gpu" if device == "gpu" else "cpu", count=count, gpus=gpus, parameters=parameters)
        for name, path in zip(named, paths, strict=True)
    ]
    for folder in write(models, out):
        click.echo(folder)


@command.command()
@click.argument("repository", type=click.Path(path_type=Path))
def check(repository: Path) -> None:
    """Say what a server would refuse of a model REPOSITORY, before it does."""
    from specbuild.triton.check import check as find

    wrong = find(repository, os.environ)
    for what in wrong:
        click.echo(what)
    if wrong:
        raise UsageError(f"a server would refuse {repository}: {len(wrong)} {'thing is' if len(wrong) == 1 else 'things are'} wrong")
    say(f"{repository}: a server takes it")


@command.command()
@click.option("-b", "--bundle", required=True, metavar="BUNDLE", help=BUNDLE_HELP)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--grpc-port", type=click.IntRange(1, 65535), default=8001, show_default=True)
@click.option("--http-port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--metrics-port", type=click.IntRange(1, 65535), default=8002, show_default=True)
@click.option("--openai", type=click.IntRange(1, 65535), metavar="PORT", help="Answer OpenAI's HTTP API there too.")
@click.option(
    "--hang-seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, metavar="S", help="Restart it after a standstill."
)
@with_options(*SERVER_OPTIONS)
def serve(
    bundle: str,
    host: str,
    grpc_port: int,
    http_port: int,
    metrics_port: int,
    openai: int | None,
    hang_seconds: float,
    **settings: int | None,
) -> None:
    """Serve a bundle until Ctrl-C, with the tritonserver on PATH or the one in nvidia-pytriton."""
    from specbuild.triton.installation import find
    from specbuild.triton.render import ModelSettings
    from specbuild.triton.server import Ports, TritonServer, check_ports
    from specbuild.triton.serving import serve as keep_up

    path = _bundle(bundle)
    installation = find()
    ports = Ports(grpc_port, http_port, metrics_port, host)
    door = nullcontext() if openai is None else _door(path, host, openai, f"{host}:{grpc_port}")

    def ready() -> None:
        where = f"gRPC {host}:{grpc_port}, HTTP {host}:{http_port}, metrics {host}:{metrics_port}/metrics"
        say(f"ready: {where}{'' if openai is None else f', OpenAI http://{host}:{openai}/v1'}; Ctrl-C stops it")

    models = [ModelSettings(bundle=path.resolve(), parameters=_parameters(settings))]
    with door, _until_stopped() as end:
        check_ports(ports)
        keep_up(lambda: TritonServer(installation, models, ports, hang_seconds=hang_seconds), end, say=say, ready=ready)
    say("stopped")


@command.command()
@click.option("--prompts", "file", type=click.Path(path_type=Path), required=True, metavar="FILE.jsonl", help=PROMPTS_HELP)
@click.option("--concurrency", default="1,2,4,8", show_default=True, metavar="LIST", help="Requests at a time.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N prompts.")
@click.option("--chat/--raw", default=True, help="Send text as a user's message (the default), or as it stands.")
@URL_OPTION
@MODEL_OPTION
@with_options(*SAMPLING_OPTIONS)
@JSON_OPTION
def bench(file: Path, concurrency: str, limit: int | None, chat: bool, url: str, model: str, as_json: bool, **sampling: Any) -> None:
    """Ask a running server every prompt at each concurrency. Times are in milliseconds, as a client sees them: `between` from response to
    response, `token` from token to token, where a response of n tokens after a gap of g counts as n gaps of g/n. `draft_lens` has the share
    of rounds that drafted so many tokens."""
    import asyncio
    import dataclasses

    from specbuild.prompts import read_prompts
    from specbuild.triton.bench import Load, sweep

    params = sampling_params(sampling)
    prompts = [
        [{"role": "user", "content": item.content}] if chat and isinstance(item.content, str) else item.content
        for item in read_prompts(file)[:limit]
    ]
    with progress() as show:
        loads = asyncio.run(sweep(url, model, prompts, params, _concurrencies(concurrency), show))
    if as_json:
        print_json([dataclasses.asdict(load) for load in loads])
    else:
        columns = [entry.name for entry in dataclasses.fields(Load)]
        print_table(columns, [[_cell(value) for value in dataclasses.astuple(load)] for load in loads])


@command.command()
@JSON_OPTION
def fields(as_json: bool) -> None:
    """List the tensors of a request, then those of a response."""
    from specbuild.triton.fields import rows

    columns = ("name", "type", "meaning")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows()])
    else:
        print_table(columns, rows())


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {part:.0%}" if isinstance(part, float) else f"{name}: {part}" for name, part in value.items()) or "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _concurrencies(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise UsageError(f"--concurrency {text!r} is no list of whole numbers above 0, such as 1,2,4")
    return values


def _bundle(reference: str) -> Path:
    from specbuild.builders.store import Store

    return Store.default().find(reference)


def _door(bundle: Path, host: str, port: int, url: str) -> AbstractContextManager[object]:
    from specbuild.bundle import Bundle
    from specbuild.triton.openai import require

    require()
    from specbuild.triton.openai.app import Endpoints
    from specbuild.triton.openai.door import Door

    return Door(Endpoints(Bundle.open(bundle), url).app(), host, port)


def _parameters(settings: dict[str, int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items() if value is not None}


class _until_stopped:  # noqa: N801  # read as a phrase
    """An event that SIGINT and SIGTERM set, rather than raising where they happen to come."""

    def __enter__(self) -> threading.Event:
        end = threading.Event()
        self._before: dict[int, Callable[..., Any] | int | None] = {
            number: signal.signal(number, lambda *_: end.set()) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return end

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
