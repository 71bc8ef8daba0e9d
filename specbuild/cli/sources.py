"""What ``run``, ``bench`` and ``draft`` have in common: which bundle, which prompts, how tokens are chosen."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from specbuild.cli.output import SET_OPTION, progress, say
from specbuild.errors import RequestError, UsageError

if TYPE_CHECKING:
    from specbuild.bundle import Bundle
    from specbuild.prompts import PromptItem
    from specbuild.recipe import Recipe
    from specbuild.runtime.generator import Generator
    from specbuild.runtime.sampling import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])

ENGINE_OPTIONS = (
    click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads of an engine."),
    click.option("--verification", metavar="RULE", help="Rule of acceptance; default: the recipe's."),
)
BUNDLE_OPTIONS = (
    click.option("-c", "--config", "reference", metavar="RECIPE", help="A recipe file, or the name of a shipped one; built if need be."),
    click.option("--bundle", "folder", metavar="BUNDLE", help="A bundle's folder, or its name in the store."),
    SET_OPTION,
    *ENGINE_OPTIONS,
)
SAMPLING_OPTIONS = (
    click.option("--max-tokens", type=int, metavar="N", help="The most output tokens; default 128."),
    click.option("--min-tokens", type=int, metavar="N", help="No end before so many output tokens."),
    click.option("--temperature", type=float, metavar="T", default=0.0, help="0, the default: the most likely token always."),
    click.option("--top-k", type=int, metavar="K", help="Keep the K most likely tokens."),
    click.option("--top-p", type=float, metavar="P", help="Keep the most likely tokens that together have probability P."),
    click.option("--min-p", type=float, metavar="P", help="Keep tokens at least P times as likely as the most likely."),
    click.option("--repetition-penalty", type=float, metavar="X", help="Above 1: tokens of prompt and output become less likely."),
    click.option("--presence-penalty", type=float, metavar="X", help="Subtracted from the logit of each token in the output."),
    click.option("--frequency-penalty", type=float, metavar="X", help="The same, once for each time that it is there."),
    click.option(
        "--seed", type=int, metavar="N", help="The same seed gives the same text; default: `run` draws and reports one, `bench` takes 0."
    ),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the output before TEXT; may be repeated."),
    click.option("--stop-token-id", "stop_token_ids", type=int, multiple=True, metavar="ID", help="End the output at a token id."),
    click.option("--ignore-eos", is_flag=True, help="Go on after the model's end of sequence."),
)
CHAT_OPTION = click.option("--chat/--raw", default=None, help="Use the chat template, or not; default: where the checkpoint has one.")
PROMPTS_HELP = "A JSON object a line with prompt, turns (the first is used) or messages; id and task are kept."


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """A decorator that adds ``options``, listed by ``--help`` in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def sampling_params(given: dict[str, Any]) -> SamplingParams:
    """Parameters from the options that were given; the others keep their defaults.

    Raises:
        RequestError: a value is out of its bounds.
    """
    from specbuild.runtime.sampling import SamplingParams

    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def check_rule(verification: str | None) -> None:
    """Refuse a rule of acceptance that there is not.

    Raises:
        UsageError: naming the closest one.
    """
    from specbuild.errors import close_match
    from specbuild.runtime.acceptance import RULES

    if verification is not None and verification not in RULES:
        raise UsageError(f"verification rule {verification!r} is unknown.{close_match(verification, RULES)}")


def bundle_source(reference: str | None, folder: str | None, settings: Sequence[str]) -> Callable[[], Bundle]:
    """A function that opens the bundle of ``-c`` (built first where the store does not have it) or of ``--bundle``.

    Raises:
        UsageError: neither or both were given, or there is no such bundle.
        RecipeError: the recipe is refused.
    """
    from specbuild import config
    from specbuild.builders.store import Store
    from specbuild.bundle import Bundle

    if folder is None and reference is not None:
        recipe = config.load(reference, settings=settings).recipe
        return lambda: built(recipe)
    if folder is None or reference is not None:
        seen = "neither" if folder is None else "both"
        raise UsageError(f"give a recipe with -c or a bundle with --bundle ({seen} was given); `specbuild config list` shows recipes")
    if settings:
        raise UsageError(f"--set {settings[0]}: a bundle's recipe is what it was built from; give the recipe with -c to change it")
    path = Store.default().find(folder)
    return lambda: Bundle.open(path)


def built(recipe: Recipe, *, steps: bool = False) -> Bundle:
    """The bundle of ``recipe``; if it has to be built, one line on stderr says so, and with ``steps`` one a step too.

    Raises:
        SpecbuildError: whatever stands in the way of the build.
    """
    from specbuild.builders.build import build
    from specbuild.builders.store import Store
    from specbuild.probe import probe

    started = time.perf_counter()
    with progress() if steps or sys.stderr.isatty() else nullcontext(lambda message: None) as show:
        result = build(recipe, store=Store.default(), probe=probe, progress=show)
    if result.built:
        say(f"built {result.bundle.path} in {time.perf_counter() - started:.1f} s")
    return result.bundle


def check_params(generator: Generator, params: SamplingParams) -> None:
    """Refuse what is wrong with ``params`` whatever the prompt is.

    Raises:
        RequestError: such as an unknown method, or a token id past the vocabulary.
    """
    if (params.speculation or generator.bundle.manifest.recipe.speculation.method) == "off":
        for name in ("draft_len", "tree_budget"):
            if (value := getattr(params, name)) is not None:
                raise RequestError(f"{name} is {value}, but the recipe's method is 'off'; name one with --speculation")
    generator.stream([(0,)], dataclasses.replace(params, max_tokens=1, min_tokens=0))


def encode(generator: Generator, items: Sequence[PromptItem], params: SamplingParams, chat: bool | None) -> list[tuple[int, ...]]:
    """Token ids of every prompt, all of them checked before the first is generated.

    Args:
        chat: Use the chat template for text; None: where the checkpoint has one. Messages always use it.

    Raises:
        RequestError: a prompt or ``params`` is outside what the bundle allows; the prompt is named.
    """
    check_params(generator, params)
    prompts: list[tuple[int, ...]] = []
    if chat is None:
        chat = generator.tokenizer.has_chat_template
    for item in items:
        content = item.content
        if isinstance(content, str) and chat:
            content = [{"role": "user", "content": content}]
        try:
            tokens = tuple(generator.encode(content))
            generator.stream([tokens], params)
        except RequestError as error:
            raise RequestError(f"{item.origin}: {error}") from error
        prompts.append(tokens)
    return prompts
