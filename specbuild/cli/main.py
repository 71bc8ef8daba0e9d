"""``specbuild``: the commands by name, and how an error becomes one line and an exit code.

Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 the environment lacks something, 4 a verification did not match,
130 interrupted. ``SPECBUILD_DEBUG=1`` shows the traceback of an error.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import os
import sys
from collections.abc import Collection
from typing import NamedTuple

import click

from specbuild.errors import SpecbuildError, UsageError, close_match

INTERRUPTED = 130


class LazyCommand(NamedTuple):
    """Where a command is, and the line that ``--help`` shows for it: known without importing it."""

    target: str
    """``module:attribute``"""
    summary: str


COMMANDS: dict[str, LazyCommand] = {
    "engine": LazyCommand("specbuild.cli.engine:command", "Compile engines from a recipe; list, show, verify and remove them."),
    "train": LazyCommand("specbuild.cli.train:command", "Train a draft head for a recipe's target, on texts that it writes itself."),
    "run": LazyCommand("specbuild.cli.run:command", "Generate text with a bundle, drafting and verifying."),
    "bench": LazyCommand("specbuild.cli.bench:command", "Compare speculation methods on a file of prompts."),
    "draft": LazyCommand("specbuild.cli.draft:command", "Choose a draft model by measuring candidates on a file of prompts."),
    "triton": LazyCommand("specbuild.cli.triton:command", "Serve a bundle on Triton; render, check and measure a deployment."),
    "client": LazyCommand("specbuild.cli.client:command", "Ask a running server, streaming its answer."),
    "demo": LazyCommand("specbuild.cli.demo:command", "Build a small model and show every method side by side."),
    "config": LazyCommand("specbuild.cli.config:command", "Show recipes, where their values come from, and their schema."),
    "doctor": LazyCommand("specbuild.cli.doctor:command", "Say what is installed, what works here and what to install for the rest."),
}


@functools.cache
def load_command(name: str) -> click.Command:
    """Import a command; its help opens with the summary of the table."""
    target, summary = COMMANDS[name]
    module, attribute = target.split(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    command.help = "\n\n".join(filter(None, [summary, inspect.cleandoc(command.help or "")]))
    return command


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(args[0], COMMANDS)
        return super().resolve_command(ctx, args)


class NounGroup(click.Group):
    """A noun with verbs; the noun alone does what the verb ``default`` does."""

    def __init__(self, *args: object, default: str | None = None, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.default = default
        self.no_args_is_help = default is None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `engine` and `engine --json` are `engine list` and `engine list --json`.
        if self.default and all(arg.startswith("-") for arg in args) and not set(args) & {"--help", "-h"}:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(args[0], self.commands)
        return super().resolve_command(ctx, args)


def refuse_unknown(name: str, commands: Collection[str]) -> None:
    """Refuse a command that there is not, naming the closest one.

    Raises:
        UsageError: no such command.
    """
    if name not in commands:
        raise UsageError(f"no command {name!r}.{close_match(name, commands)}")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="specbuild")
def cli() -> None:
    """Compile, prove, measure and deploy speculative decoding."""


def main(arguments: list[str] | None = None) -> None:
    """The program: runs a command and ends the process with its exit code."""
    with open(os.devnull, "r+", encoding="utf-8") as nothing:  # noqa: PTH123  no path
        # A stream that was closed before the program started is None: it reads and takes nothing.
        sys.stdin, sys.stdout, sys.stderr = sys.stdin or nothing, sys.stdout or nothing, sys.stderr or nothing
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # τ on an ASCII terminal is no reason to fail
        sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command; an error becomes one line on stderr.

    Returns:
        The exit code.
    """
    try:
        code = cli.main(arguments, prog_name="specbuild", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SpecbuildError as error:
        if os.environ.get("SPECBUILD_DEBUG") == "1":
            raise
        return _refuse(str(error), error.exit_code)
    except OSError as error:
        # What the system refuses is no bug, wherever it comes up: a folder that may not be entered, a name that is too long.
        if os.environ.get("SPECBUILD_DEBUG") == "1" or error.strerror is None:
            raise
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return _refuse(f"{where}{error.strerror}; name another path, or change who may use this one", SpecbuildError.exit_code)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED


def _refuse(sentence: str, code: int) -> int:
    """Say what is wrong, in one line though a library's words in it had several."""
    click.echo(f"error: {' '.join(sentence.splitlines())}", err=True)
    return code
