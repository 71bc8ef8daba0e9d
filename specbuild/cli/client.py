"""``specbuild client``: ask a running server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from specbuild.cli.output import JSON_OPTION, print_json, say
from specbuild.cli.sources import SAMPLING_OPTIONS, sampling_params, with_options
from specbuild.cli.triton import MODEL_OPTION, URL_OPTION

if TYPE_CHECKING:
    from specbuild.triton.wire import Answer


@click.command()
@click.argument("prompt")
@click.option("--chat/--raw", default=True, help="Send the prompt as a user's message (the default), or as it stands.")
@URL_OPTION
@MODEL_OPTION
@with_options(*SAMPLING_OPTIONS)
@click.option("--logprobs", type=int, metavar="N", help="With --json: of each token and of the N most likely ones.")
@click.option("--speculation", metavar="METHOD", help="How tokens are proposed, or off; default: as the server does.")
@click.option("--draft-len", type=int, metavar="K", help="Draft tokens a round; default: the server chooses.")
@click.option("--tree-budget", type=int, metavar="N", help="Tokens of a draft's whole tree, 0 for chains; default: the bundle's.")
@click.option("--priority", type=int, default=0, show_default=True, metavar="N", help="Lower numbers are admitted first.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after so long.")
@JSON_OPTION
def command(prompt: str, chat: bool, url: str, model: str, priority: int, timeout: float | None, as_json: bool, **sampling: Any) -> None:
    """The text goes to stdout as it is made, figures to stderr. Ctrl-C cancels the request on the server."""
    import dataclasses

    from specbuild.triton import Client

    content = [{"role": "user", "content": prompt}] if chat else prompt
    with Client(url, model).stream(content, sampling_params(sampling), priority=priority, timeout=timeout) as stream:
        for chunk in stream:
            if not as_json:
                click.echo(chunk.text, nl=False)
                sys.stdout.flush()
        answer = stream.answer
    if as_json:
        print_json(dataclasses.asdict(answer))
        return
    click.echo()
    say(f"{figures(answer)}; ended by {answer.finish_reason}; seed {answer.figures['seed']}")


def figures(answer: Answer) -> str:
    """How fast a served answer came, and what drafting gave."""
    of = answer.figures
    speed = len(answer.tokens) / of["decode_seconds"] if of["decode_seconds"] else 0.0
    drafted = f"; {of['acceptance_rate']:.0%} of {of['total_draft_tokens']} draft tokens accepted" if of["total_draft_tokens"] else ""
    return f"{len(answer.tokens)} tokens at {speed:.1f} a second, {of['mean_acceptance_length']:.2f} a round{drafted}"
