"""How ``run`` shows answers: JSON lines for programs, plain text in a pipe, coloured text as it comes for people."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click

from specbuild.cli.output import say
from specbuild.prompts import PromptItem
from specbuild.runtime.detokenizer import Detokenizer
from specbuild.runtime.generator import Completion, Delta, Generator
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.tokenizer import Tokenizer

ACCEPTED_COLOUR = "green"

Show = Callable[[Delta], None]


def in_order(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Deltas of answers that run side by side, one answer after the other in the order of the prompts, each as early as may be."""
    waiting: dict[int, list[Delta]] = {}
    current = 0
    for delta in deltas:
        waiting.setdefault(delta.index, []).append(delta)
        while ready := waiting.pop(current, None):
            yield from ready
            if ready[-1].completion is None:
                break
            current += 1


class Painter:
    """Tells which characters of an answer accepted draft tokens made.

    Text lags behind the tokens (half a character, what may become a stop string), so each character is put down to the
    token that completed it, by detokenising once more, token by token.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._drafted: deque[bool] = deque()
        """Of each character that is certain and not shown yet."""

    def spans(self, delta: Delta) -> list[tuple[str, bool]]:
        """The delta's text in pieces, each with whether accepted draft tokens made it."""
        for place, token in enumerate(delta.tokens):
            self._drafted.extend([place < delta.accepted] * len(self._detokenizer.push(token)))
        pieces: list[tuple[str, bool]] = []
        for character in delta.text:
            drafted = self._drafted.popleft() if self._drafted else False
            if pieces and pieces[-1][1] == drafted:
                character = pieces.pop()[0] + character
            pieces.append((character, drafted))
        return pieces


def printer(
    generator: Generator, items: Sequence[PromptItem], prompts: Sequence[tuple[int, ...]], params: SamplingParams, *, as_json: bool
) -> Show:
    """What shows each delta, given in the order of the prompts."""
    if as_json:
        return _whole(lambda index, completion: click.echo(json.dumps(record(items[index], completion, params))))
    method = params.speculation or generator.bundle.manifest.recipe.speculation.method
    if not sys.stdout.isatty():
        return _whole(lambda index, completion: _plain(index, completion, method))
    return _terminal(generator.tokenizer, prompts, method)


def record(item: PromptItem, completion: Completion, params: SamplingParams) -> dict[str, Any]:
    """One answer as ``--json`` prints it; ``task`` and ``logprobs`` only where they were given and asked for."""
    stats = dataclasses.asdict(completion.stats)
    del stats["reached_by_position"], stats["reused_tokens"]
    shown: dict[str, Any] = {"id": item.id} if item.task is None else {"id": item.id, "task": item.task}
    shown |= {name: getattr(completion, name) for name in ("text", "token_ids", "finish_reason", "stop_reason")}
    if params.logprobs is not None:
        shown["logprobs"] = [dataclasses.asdict(entry) for entry in completion.logprobs]
    return shown | {"seed": completion.seed, "stats": stats}


def figures(completion: Completion, method: str) -> str:
    """The line after an answer."""
    stats = completion.stats
    parts = [f"{stats.tokens_per_second:.1f} tok/s", f"τ {stats.mean_acceptance_length:.2f}"]
    if stats.num_draft_tokens:
        parts.append(f"{stats.draft_acceptance_rate:.0%} of {stats.num_draft_tokens} draft tokens accepted")
    parts += [f"{stats.emitted_tokens} tokens ({completion.finish_reason})", f"speculation {method}", f"seed {completion.seed}"]
    if stats.lossy is not None:
        parts.append(f"lossy ({stats.lossy})")
    return " · ".join(parts)


def _whole(show: Callable[[int, Completion], None]) -> Show:
    """Shows nothing of an answer until it is complete: an interruption leaves none half-written."""
    return lambda delta: None if delta.completion is None else show(delta.index, delta.completion)


def _plain(index: int, completion: Completion, method: str) -> None:
    click.echo(f"\n{completion.text}" if index else completion.text)
    say(figures(completion, method))


def _terminal(tokenizer: Tokenizer, prompts: Sequence[tuple[int, ...]], method: str) -> Show:
    painters = [Painter(tokenizer, prompt) for prompt in prompts]
    coloured = "NO_COLOR" not in os.environ

    def show(delta: Delta) -> None:
        for text, drafted in painters[delta.index].spans(delta):
            click.echo(click.style(text, fg=ACCEPTED_COLOUR) if drafted and coloured else text, nl=False)
        if delta.completion is not None:
            click.echo()
            say(click.style(figures(delta.completion, method), dim=True) if coloured else figures(delta.completion, method))

    return show
