"""``specbuild train``: a draft head for any target, or an adapter for its early exit, from nothing but the target."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from specbuild.cli.output import JSON_OPTION, RECIPE_OPTION, SET_OPTION, print_json, progress, say
from specbuild.cli.sources import PROMPTS_HELP
from specbuild.errors import EnvironmentLacksError, UsageError
from specbuild.recipe import HeadsSection, TrainedRole

if TYPE_CHECKING:
    from specbuild.builders.training.sources import Source
    from specbuild.builders.training.trainer import Progress
    from specbuild.recipe import Recipe

ANSWER_TOKENS = 144
WRITING_BATCH = 64
"""Dialogues that are written at a time."""


@click.command()
@click.argument("kind", type=click.Choice(get_args(TrainedRole)))
@RECIPE_OPTION
@SET_OPTION
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where it goes; default: ./NAME-KIND, or ./NAME-KIND-LAYERS.")
@click.option("--tokens", type=click.IntRange(min=1), default=220_000, show_default=True, metavar="N", help="Tokens to learn from.")
@click.option("--steps", type=click.IntRange(min=1), default=3600, show_default=True, metavar="N", help="Batches of 1,024 tokens.")
@click.option("--draft-vocabulary", type=click.IntRange(min=1), default=12_288, show_default=True, metavar="N", help="Tokens it can draft.")
@click.option("--prompts", "file", type=click.Path(path_type=Path), metavar="FILE.jsonl", help=f"Your own traffic. {PROMPTS_HELP}")
@click.option("--text", type=click.Path(path_type=Path), metavar="FILE", help="Plain text to learn the target's law on.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of everything that is drawn.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads; default: all cores.")
@JSON_OPTION
def command(
    kind: TrainedRole,
    reference: str,
    settings: tuple[str, ...],
    out: Path | None,
    tokens: int,
    steps: int,
    draft_vocabulary: int,
    file: Path | None,
    text: Path | None,
    seed: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """The target writes prompts and answers them; its hidden states are kept; the head learns to foretell it. With --prompts it
    answers yours instead. Killed, the same command goes on where it was. Prints the folder of the head, for speculation.heads; of an
    early_exit, which needs speculation.early_exit.layers, that of the adapter, for speculation.early_exit.adapter."""
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentLacksError("training needs torch, which is not installed; pip install 'specbuild[train]'")
    if file is not None and text is not None:
        raise UsageError("--prompts and --text were both given; leave one of them out")
    from specbuild import config
    from specbuild.builders.store import Store
    from specbuild.builders.training.run import Wanted, train
    from specbuild.builders.training.trainer import Settings

    recipe = _bare(config.load(reference, settings=settings).recipe, kind)
    threads = threads or os.cpu_count() or 1
    origin = _origin(file or text)
    wanted = Wanted(kind, recipe, tokens, Settings(steps=steps, seed=seed), draft_vocabulary, origin, threads)
    out = out or Path(f"{recipe.name}-{wanted.name}")
    with progress() as show:

        def report(at: Progress) -> None:
            measured = f", held-out {at.held_out}" if at.held_out else ""
            show(f"step {at.step} of {steps}: loss {at.loss:.3f}, first token {at.hits:.2f}{measured}")

        trained = train(wanted, _opener(recipe, file, text, seed, threads, show), Store.default().home, out, say=show, report=report)
    if as_json:
        print_json(
            {"path": trained.folder, "tau": trained.held_out.tau, "acceptance": trained.held_out.by_step, "seconds": trained.seconds}
        )
        return
    say(f"trained in {trained.seconds:.0f} s; on texts that it has not seen, drafting 4 tokens: {trained.held_out}")
    click.echo(trained.folder)


def _bare(recipe: Recipe, kind: TrainedRole) -> Recipe:
    """The target alone, with room for many dialogues at a time: what it is to have beside it may not be there yet. An adapter is trained
    for the place of the exit.

    Raises:
        UsageError: the recipe has none.
    """
    exit_ = recipe.speculation.early_exit if kind == "early_exit" else None
    if kind == "early_exit" and exit_ is None:
        raise UsageError("early_exit: the recipe does not say after how many layers; add --set speculation.early_exit.layers=N")
    bare = {"method": "off", "draft": None, "heads": HeadsSection()}
    exit_ = exit_ and exit_.model_copy(update={"adapter": None})
    speculation = recipe.speculation.model_copy(update=bare | {"early_exit": exit_})
    target = recipe.target.model_copy(update={"max_batch_size": max(WRITING_BATCH, recipe.target.max_batch_size)})
    return recipe.model_copy(update={"backend": "onnxruntime", "speculation": speculation, "target": target})


def _origin(file: Path | None) -> str:
    """What names the texts: by content where they are the user's."""
    from specbuild.bundle import file_digest

    if file is None:
        return f"written by the target, answers of up to {ANSWER_TOKENS} tokens"
    if not file.is_file():
        raise UsageError(f"{file}: no such file")
    return f"{file.name} {file_digest(file)}"


def _opener(
    recipe: Recipe, file: Path | None, text: Path | None, seed: int, threads: int, show: Callable[[str], None]
) -> Callable[[], Source]:
    """A function that loads the engines and opens the source of texts that was asked for."""

    def open_source() -> Source:
        from specbuild.builders.build import build
        from specbuild.builders.store import Store
        from specbuild.builders.training.dialogues import Writer
        from specbuild.builders.training.sources import Answered, Given, SelfWritten
        from specbuild.prompts import as_text, read_prompts
        from specbuild.teacher import EngineTeacher

        whole = recipe.model_copy(update={"speculation": recipe.speculation.model_copy(update={"early_exit": None})})
        teacher = EngineTeacher(build(whole, store=Store.default(), progress=show).bundle, threads=threads)
        show("the target writes")
        if file is not None:
            prompts = [teacher.prompt(item.content) for item in read_prompts(file)]
            return Answered(teacher, prompts, seed=seed, answer_tokens=ANSWER_TOKENS)
        if text is not None:
            return Given(teacher.encode(as_text(text.read_bytes(), str(text))), max_seq_len=teacher.max_seq_len)
        return SelfWritten(Writer(teacher, seed=seed, answer_tokens=min(ANSWER_TOKENS, teacher.max_seq_len // 8)))

    return open_source
