"""``specbuild run``: prompts in, text out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specbuild.cli.output import JSON_OPTION, say
from specbuild.cli.sources import (
    BUNDLE_OPTIONS,
    CHAT_OPTION,
    PROMPTS_HELP,
    SAMPLING_OPTIONS,
    bundle_source,
    check_rule,
    encode,
    sampling_params,
    with_options,
)
from specbuild.errors import UsageError

if TYPE_CHECKING:
    from specbuild.prompts import PromptItem


@click.command()
@with_options(*BUNDLE_OPTIONS)
@click.option("--prompt", metavar="TEXT", help="The prompt; default: all of stdin.")
@click.option("--prompts", "file", type=click.Path(path_type=Path), metavar="FILE.jsonl", help=PROMPTS_HELP)
@CHAT_OPTION
@with_options(*SAMPLING_OPTIONS)
@click.option("--logprobs", type=int, metavar="N", help="With --json: of each token and of the N most likely ones.")
@click.option("--speculation", metavar="METHOD", help="How tokens are proposed, or off; default: the recipe's.")
@click.option("--draft-len", type=int, metavar="K", help="Draft tokens a round; default: the recipe's.")
@click.option("--tree-budget", type=int, metavar="N", help="Tokens of a draft's whole tree, 0 for chains; default: the recipe's.")
@click.option("--batch", type=int, default=1, show_default=True, metavar="B", help="Prompts that are answered at a time.")
@JSON_OPTION
def command(
    reference: str | None,
    folder: str | None,
    settings: tuple[str, ...],
    threads: int | None,
    verification: str | None,
    prompt: str | None,
    file: Path | None,
    chat: bool | None,
    batch: int,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Text goes to stdout, figures to stderr. On a terminal the text comes as it is made, accepted draft tokens in colour."""
    from specbuild.cli.answers import in_order, printer

    params = sampling_params(sampling)
    check_rule(verification)
    if params.logprobs is not None and not as_json:
        raise UsageError(f"--logprobs {params.logprobs} is shown with --json only; add it")
    open_bundle = bundle_source(reference, folder, settings)
    items = _items(prompt, file)
    bundle = open_bundle()

    from specbuild.runtime.generator import Generator

    generator = Generator(bundle, batch=batch, verification=verification, threads=threads)
    prompts = encode(generator, items, params, chat)
    for note in generator.notes:
        say(f"note: {note}")
    show = printer(generator, items, prompts, params, as_json=as_json)
    for delta in in_order(generator.stream(prompts, params)):
        show(delta)


def _items(prompt: str | None, file: Path | None) -> list[PromptItem]:
    """The prompts of whichever source was given.

    Raises:
        UsageError: two sources, none, or one that has no prompt.
    """
    from specbuild.prompts import PromptItem, as_text, read_prompts

    if prompt is not None and file is not None:
        raise UsageError("--prompt and --prompts were both given; leave one of them out")
    if file is not None:
        return read_prompts(file)
    if prompt is not None:
        return [PromptItem(0, as_text(prompt.encode("utf-8", "surrogateescape"), "--prompt"), "--prompt")]
    if sys.stdin.isatty():
        raise UsageError("no prompt: give --prompt TEXT, --prompts FILE.jsonl, or text on stdin")
    text = as_text(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    if not text:
        raise UsageError("stdin is empty: give the prompt there, or with --prompt TEXT or --prompts FILE.jsonl")
    return [PromptItem(0, text, "stdin")]
