"""``specbuild bench``: which method pays on a file of prompts, and by how much."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specbuild.cli.output import JSON_OPTION, print_json, print_table, progress, say
from specbuild.cli.sources import (
    BUNDLE_OPTIONS,
    CHAT_OPTION,
    PROMPTS_HELP,
    SAMPLING_OPTIONS,
    bundle_source,
    check_params,
    check_rule,
    encode,
    sampling_params,
    with_options,
)
from specbuild.errors import RequestError, UsageError, VerificationError

if TYPE_CHECKING:
    from specbuild.bench.measure import Run, Variant
    from specbuild.bench.report import Row
    from specbuild.bundle import Bundle
    from specbuild.prompts import PromptItem
    from specbuild.runtime.proposers.base import Proposer
    from specbuild.runtime.sampling import SamplingParams

COLUMNS = ("method", "draft_len", "tree", "batch", "task", "tok/s", "ratio", "spread", "τ", "accepted by position", "overhead", "identical")


def length(text: str) -> int | None:
    """Draft tokens a round; None: ``auto``."""
    return None if text == "auto" else int(text)


def listed(kind: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], tuple[Any, ...] | None]:
    """Reads an option's values, which are joined by commas; None where it was not given."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[Any, ...] | None:
        try:
            return None if value is None else tuple(kind(part.strip()) for part in value.split(","))
        except ValueError:
            raise click.BadParameter(f"{value!r} is no list of whole numbers such as 2,4", ctx, param) from None

    return read


@click.command()
@with_options(*BUNDLE_OPTIONS)
@click.option("--prompts", "file", type=click.Path(path_type=Path), required=True, metavar="FILE.jsonl", help=PROMPTS_HELP)
@CHAT_OPTION
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N prompts of each task.")
@click.option("--methods", callback=listed(str), metavar="LIST", help="Such as ngram,draft_model; default: all that the bundle has.")
@click.option("--draft-len", "draft_lens", callback=listed(length), metavar="LIST", help="Such as 2,4,auto; default: the recipe's.")
@click.option(
    "--tree-budget", "tree_budgets", callback=listed(int), metavar="LIST", help="Such as 0,7, 0 for chains; default: the recipe's."
)
@click.option(
    "--batch", "batches", callback=listed(int), default="1", metavar="LIST", help="Prompts answered together, such as 1,4; default 1."
)
@with_options(*SAMPLING_OPTIONS)
@JSON_OPTION
def command(
    reference: str | None,
    folder: str | None,
    settings: tuple[str, ...],
    threads: int | None,
    verification: str | None,
    file: Path,
    chat: bool | None,
    limit: int | None,
    methods: tuple[str, ...] | None,
    draft_lens: tuple[int | None, ...] | None,
    tree_budgets: tuple[int, ...] | None,
    batches: tuple[int, ...],
    as_json: bool,
    **sampling: Any,
) -> None:
    """The methods take turns prompt by prompt. `off`, plain decoding, is always among them: ratios are to it, and every output
    must be its own (else the exit code is 4) unless the recipe is lossy. The spread of a ratio is from the 5th to the 95th percentile,
    prompts drawn anew."""
    from specbuild.prompts import read_prompts

    params = seeded(sampling)
    check_rule(verification)
    open_bundle = bundle_source(reference, folder, settings)
    items = first_of_each_task(read_prompts(file), limit)
    bundle = open_bundle()

    from specbuild.bench.machine import machine
    from specbuild.bench.report import report, verdict
    from specbuild.runtime.proposers import available

    lengths = draft_lens or (bundle.manifest.recipe.speculation.draft_len,)
    plan = variants_of(bundle.engine("target").max_batch_size, methods or available(bundle), lengths, batches, tree_budgets)
    runs = measured(bundle, items, plan, params, chat=chat, verification=verification, threads=threads)
    rows = report(runs)
    if as_json:
        print_json({"rows": [record(row) for row in rows], "machine": machine(threads), "bundle": bundle.path})
        say(verdict(rows))
    else:
        print_table(COLUMNS, map(cells, rows))
        click.echo(verdict(rows))
    refuse_differences(runs)


def first_of_each_task(items: Sequence[PromptItem], limit: int | None) -> list[PromptItem]:
    """The first ``limit`` items of each task, in their order; None: all."""
    kept: list[PromptItem] = []
    seen: dict[str | None, int] = {}
    for item in items:
        seen[item.task] = seen.get(item.task, 0) + 1
        if limit is None or seen[item.task] <= limit:
            kept.append(item)
    return kept


def record(row: Row) -> dict[str, Any]:
    """A row as ``--json`` prints it."""
    shown = dataclasses.asdict(row.variant) | dataclasses.asdict(row)
    del shown["variant"], shown["acceptance_by_position"]
    return shown


def cells(row: Row) -> list[str]:
    """A row of the table; its columns are ``COLUMNS``."""
    variant = row.variant
    accepted = " ".join(f"{rate:.2f}" for rate in row.acceptance_by_position) or "-"
    return [
        variant.method,
        variant.asked if variant.draft_len != 0 else "-",
        "-" if variant.tree_budget is None else str(variant.tree_budget),
        str(variant.batch),
        row.task,
        f"{row.tokens_per_second:.1f}",
        f"{row.speedup:.2f}",
        f"{row.speedup_low:.2f}–{row.speedup_high:.2f}",
        f"{row.mean_acceptance_length:.2f}",
        accepted,
        f"{row.overhead:.1%}",
        "lossy" if row.lossy else "yes" if row.identical else "NO",
    ]


def refuse_differences(runs: Sequence[Run]) -> None:
    """Compare every output with plain decoding, but for those of a lossy rule, which promise nothing.

    Raises:
        VerificationError: some differ; every variant that has any is named.
    """
    from specbuild.bench.report import plain_outputs

    reference = plain_outputs(runs)
    differing: dict[Variant, set[int]] = {}
    for run in runs:
        for case, completion in zip(run.cases, run.completions, strict=True):
            if completion.stats.lossy is None and completion.token_ids != reference[case]:
                differing.setdefault(run.variant, set()).add(case)
    if differing:
        seen = ", ".join(f"{variant} at batch {variant.batch} on {len(cases)}" for variant, cases in differing.items())
        why = "a verification rule other than coupled does that when sampling, and an engine whose bits are not invariant"
        raise VerificationError(f"output differs from plain decoding on some of the {len(reference)} prompts: {seen} ({why})")


def variants_of(
    largest: int,
    methods: Sequence[str],
    draft_lens: Sequence[int | None],
    batches: Sequence[int],
    tree_budgets: Sequence[int] | None = None,
) -> list[list[Variant]]:
    """The variants of each batch, the smallest batch first.

    Args:
        largest: The batch that the target's engine is built for.
        tree_budgets: 0 for chains; None: as the recipe says.

    Raises:
        RequestError: a batch that the engine does not take.
        UsageError: a draft length below 1.
    """
    from specbuild.bench.measure import variants

    for batch in batches:
        if not 1 <= batch <= largest:
            raise RequestError(f"batch is {batch}, but the engine was built for 1 to {largest}; raise target.max_batch_size")
    if wrong := [length for length in draft_lens if length is not None and length < 1]:
        raise UsageError(f"draft_len is {min(wrong)}, but must be at least 1; `off` is always measured")
    return [variants(methods, draft_lens, batch, tree_budgets or (None,)) for batch in sorted(set(batches))]


def seeded(sampling: dict[str, Any]) -> SamplingParams:
    """Parameters from the options that were given, with a seed: the answers of all methods are to be the same.

    Raises:
        RequestError: as ``sampling_params``.
    """
    params = sampling_params(sampling)
    return params if params.seed is not None else dataclasses.replace(params, seed=0)


def measured(
    bundle: Bundle,
    items: Sequence[PromptItem],
    plan: Sequence[Sequence[Variant]],
    params: SamplingParams,
    *,
    chat: bool | None = None,
    verification: str | None = None,
    threads: int | None = None,
    proposers: Callable[[int], Mapping[str, Proposer]] = lambda batch: {},
) -> list[Run]:
    """Every prompt answered by every variant of ``plan``, all checked before the first; progress goes to stderr.

    Args:
        proposers: Batch → method → proposer, beside those of the bundle.

    Raises:
        RequestError: a prompt or a variant is outside what the bundle allows.
    """
    from specbuild.bench.measure import Case, measure
    from specbuild.bundle import REBUILD
    from specbuild.runtime.generator import Generator

    choosing = any(variant.draft_len is None for variant in plan[0])
    if choosing and bundle.engine("target").probe is None:
        raise RequestError(f"draft_len is auto, but the bundle was built with --no-probe: what passes cost is not known; {REBUILD}")
    # The cache holds one generator: that of the batch being measured.
    open_generator = functools.lru_cache(maxsize=1)(
        lambda batch: Generator(
            bundle, batch=batch, verification=verification, threads=threads, proposers=proposers(batch), choosing=choosing
        )
    )
    generator = open_generator(plan[0][0].batch)
    for variant in plan[0]:
        check_params(generator, variant.params(params))
    cases = [Case(tokens, item.task) for item, tokens in zip(items, encode(generator, items, params, chat), strict=True)]
    for note in generator.notes:
        say(f"note: {note}")
    with progress() as show:
        return measure(open_generator, cases, plan, params, show)
