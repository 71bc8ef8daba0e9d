"""What the commands print: data on stdout, talk on stderr, colours and progress only for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
RECIPE_OPTION = click.option(
    "-c", "--config", "reference", required=True, metavar="RECIPE", help="A recipe file, or the name of a shipped one (`config list`)."
)
SET_OPTION = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key of the recipe, as a.b=value.")


def print_json(value: Any) -> None:
    """``value`` as JSON on stdout; a path is its text."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """A table on stdout, as wide as its content when stdout is not a terminal: no cell is ever cut in a pipe."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(str(cell), overflow="fold") for cell in row))
    console = Console() if sys.stdout.isatty() else Console(width=10_000)
    console.print(table)


def say(message: str) -> None:
    """Talk: one line on stderr."""
    click.echo(message, err=True)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done: a spinner for people, a line a step elsewhere. All of it on stderr."""
    if not sys.stderr.isatty():
        yield say
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("…") as status:
        yield lambda message: status.update(message)


def size(count: int) -> str:
    """Bytes for people: 1536 → ``1.5 KiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"not JSON: {type(value).__name__}")
