"""The frame of the commands: names, exit codes, one line an error."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from specbuild import errors
from specbuild.cli import main
from specbuild.cli.main import COMMANDS, LazyCommand, run


@pytest.mark.parametrize("arguments", [["--help"], ["engine", "--help"], ["config", "-h"], ["doctor", "--help"], ["--version"]])
def test_help_ends_well(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().out


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for name, command in COMMANDS.items():
        assert f"{name} {command.summary}" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says_and_opens_its_help_with_the_tables_line(name: str) -> None:
    module, attribute = COMMANDS[name].target.split(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)
    assert (main.load_command(name).help or "").startswith(COMMANDS[name].summary)
    assert main.load_command(name) is main.load_command(name)
    assert "\n " not in (main.load_command(name).help or ""), "the indentation of the source is not shown"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["engin"], "error: no command 'engin'. Did you mean 'engine'?"),
        (["xyz"], "error: no command 'xyz'. Known: bench, client, config, demo, doctor, draft, engine, run, train, triton."),
        (["engine", "biuld"], "error: no command 'biuld'. Did you mean 'build'?"),
        (["config", "shwo", "-c", "x"], "error: no command 'shwo'. Did you mean 'show'?"),
    ],
)
def test_an_unknown_command_brings_the_closest(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", sentence + "\n")


@pytest.mark.parametrize(
    "arguments", [["engine", "build"], ["engine", "build", "--what"], ["engine", "prune", "--keep", "-1"], ["doctor", "x"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: specbuild" in err


def failing(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.BuildError("it broke"), 1, "error: it broke\n"),
        (errors.RecipeError("bad key"), 2, "error: bad key\n"),
        (errors.EnvironmentLacksError("no GPU"), 3, "error: no GPU\n"),
        (errors.VerificationError("differs"), 4, "error: differs\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    monkeypatch.delenv("SPECBUILD_DEBUG", raising=False)
    monkeypatch.setattr(main, "load_command", lambda name: failing(error))
    assert run(["doctor"]) == code
    out, err = capsys.readouterr()
    assert (out, err.lstrip("\n")) == ("", said)


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBUILD_DEBUG", "1")
    monkeypatch.setattr(main, "load_command", lambda name: failing(errors.BuildError("it broke")))
    with pytest.raises(errors.BuildError, match="it broke"):
        run(["doctor"])


def test_a_bug_is_not_dressed_up_as_a_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "load_command", lambda name: failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        run(["doctor"])


def test_a_reader_that_leaves_hears_no_complaint() -> None:
    """As ``specbuild config schema | head -1``: the pipe is closed before anything is written to it."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "specbuild", "config", "schema"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""


@pytest.mark.parametrize(("closed", "code"), [("<&-", 2), (">&-", 0), ("2>&-", 0)])
def test_a_stream_may_be_closed_from_the_start(tiny_bundle: Path, closed: str, code: int) -> None:
    prompt = "" if closed == "<&-" else "--prompt Hello"
    command = f"{sys.executable} -m specbuild run --bundle {tiny_bundle} --max-tokens 2 {prompt} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if closed == "<&-":
        assert done.stderr.startswith("error: stdin is empty")


def test_an_ascii_terminal_is_no_reason_to_fail() -> None:
    command = [
        sys.executable,
        "-c",
        "from specbuild.cli import main, output; main.run = lambda a: output.print_table(['τ'], [['1']]); main.main()",
    ]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u03c4" in done.stdout


def test_a_lazy_command_is_a_target_and_a_line() -> None:
    assert all(isinstance(command, LazyCommand) and command.summary.endswith(".") for command in COMMANDS.values())
