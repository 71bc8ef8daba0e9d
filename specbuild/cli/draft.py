"""``specbuild draft``: which draft model to take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from specbuild.cli.bench import COLUMNS, cells, first_of_each_task, listed, measured, record, refuse_differences, seeded, variants_of
from specbuild.cli.main import NounGroup
from specbuild.cli.output import JSON_OPTION, RECIPE_OPTION, SET_OPTION, print_json, print_table, say
from specbuild.cli.sources import CHAT_OPTION, ENGINE_OPTIONS, PROMPTS_HELP, SAMPLING_OPTIONS, built, check_rule, with_options
from specbuild.errors import PreflightError, UsageError


@click.group(cls=NounGroup)
def command() -> None:
    """A draft model pays where it agrees with the target often and costs little; both depend on what is asked."""


@command.command()
@RECIPE_OPTION
@SET_OPTION
@click.option(
    "--candidates",
    "texts",
    callback=listed(str),
    required=True,
    metavar="LIST",
    help="Checkpoints, each as REF or REF@PRECISION (default int4); @PRECISION is the target's own. Such as hf:ORG/SMALL,@int4.",
)
@click.option("--prompts", "file", type=click.Path(path_type=Path), required=True, metavar="FILE.jsonl", help=PROMPTS_HELP)
@CHAT_OPTION
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N prompts of each task.")
@click.option("--draft-len", "draft_lens", callback=listed(int), metavar="LIST", help="Such as 2,4; default: the recipe's.")
@click.option("--batch", type=int, default=1, show_default=True, metavar="B", help="Prompts answered together.")
@with_options(*ENGINE_OPTIONS, *SAMPLING_OPTIONS)
@JSON_OPTION
def rank(
    reference: str,
    settings: tuple[str, ...],
    texts: tuple[str, ...],
    file: Path,
    chat: bool | None,
    limit: int | None,
    draft_lens: tuple[int, ...] | None,
    batch: int,
    threads: int | None,
    verification: str | None,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Measure candidate draft models on your prompts, and say which to take, or none.

    They take turns with plain decoding and prompt lookup, prompt by prompt, the fastest is listed first. A candidate that cannot draft for
    the target is listed with the reason. None is taken unless the whole spread of its ratio is above plain decoding, and above prompt
    lookup where that pays."""
    from specbuild import config
    from specbuild.prompts import read_prompts

    params = seeded(sampling)
    check_rule(verification)
    recipe = config.load(reference, settings=settings).recipe
    lengths, longest = draft_lens or (recipe.speculation.draft_len,), recipe.speculation.max_draft_len
    if max(lengths) > longest:
        raise UsageError(f"draft_len is {max(lengths)}, but the recipe's engines verify at most {longest}; raise speculation.max_draft_len")
    items = first_of_each_task(read_prompts(file), limit)

    from specbuild.bench.machine import machine
    from specbuild.bench.ranking import LOOKUP, Candidate, choose, proposers, ranked, screened, together
    from specbuild.bench.report import report

    checked = screened(recipe, [Candidate.parse(text) for text in texts])
    refused = {str(candidate): reason for candidate, reason in checked.items() if reason is not None}
    candidates = [candidate for candidate, reason in checked.items() if reason is None]
    if not candidates:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise PreflightError(f"no candidate can draft for {recipe.checkpoint}: {reasons}")
    plan = variants_of(recipe.target.max_batch_size, [LOOKUP, *map(str, candidates)], lengths, [batch])
    bundle = built(together(recipe, candidates))
    runs = measured(
        bundle,
        items,
        plan,
        params,
        chat=chat,
        verification=verification,
        threads=threads,
        proposers=lambda rows: proposers(bundle, candidates, rows, threads),
    )
    if not any(run.group for run in runs):
        say("note: one group of prompts has no spread: every ratio is of that one alone; give more prompts")
    rows = report(runs)
    choice = choose(rows, runs, candidates)
    if as_json:
        taken = choice.variant and {"candidate": choice.variant.method, "draft_len": choice.variant.draft_len}
        shown = [record(row) | {"acceptance_by_position": row.acceptance_by_position} for row in rows]
        print_json({"choice": taken, "rows": shown, "refused": refused, "machine": machine(threads), "bundle": bundle.path})
        say(choice.verdict)
    else:
        print_table(COLUMNS, map(cells, ranked(rows)))
        if refused:
            print_table(("refused", "why"), refused.items())
        click.echo(choice.verdict)
    refuse_differences(runs)
