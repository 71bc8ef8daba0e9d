"""What measured runs say: a row for each variant and task, and one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specbuild.runtime.stats import RequestStats

from .measure import OFF, Run, Variant

ALL = "all"
RESAMPLES = 2000
SPREAD = (5, 95)
"""Percentiles between which a ratio's spread is reported."""


@dataclass(frozen=True)
class Row:
    """One variant on one task, or on ``all``."""

    variant: Variant
    task: str
    tokens_per_second: float
    """Emitted tokens / wall time of decoding, prompts left out."""
    speedup: float
    """Ratio to ``off`` at the same batch: of all tokens / all seconds, so that long answers weigh more."""
    speedup_low: float
    speedup_high: float
    mean_acceptance_length: float
    acceptance_by_position: tuple[float, ...]
    overhead: float
    """1 − engine time / decode time."""
    identical: bool
    """Every token as plain decoding at the smallest batch gave it."""
    lossy: str | None
    """The rule that was allowed to change the output: that it did not is no promise."""


def report(runs: Sequence[Run]) -> list[Row]:
    """Rows in the order of the variants: each task, then ``all`` closes the variant."""
    reference = plain_outputs(runs)
    base = {(run.variant.batch, run.group): run for run in runs if run.variant.method == OFF}
    rows = []
    for variant in sorted(dict.fromkeys(run.variant for run in runs), key=lambda variant: (variant.batch, variant.method != OFF)):
        own = sorted((run for run in runs if run.variant == variant), key=lambda run: run.group)
        tasks = dict.fromkeys(run.task for run in own if run.task is not None)
        for task in (*tasks, None):
            part = [run for run in own if task is None or run.task == task]
            rows.append(_row(variant, task or ALL, part, [base[variant.batch, run.group] for run in part], reference))
    return rows


def plain_outputs(runs: Iterable[Run]) -> dict[int, tuple[int, ...]]:
    """Case → the tokens of plain decoding, as alone as it was measured: those of the smallest batch."""
    plain = [run for run in runs if run.variant.method == OFF]
    smallest = min(run.variant.batch for run in plain)
    return {
        case: completion.token_ids
        for run in plain
        if run.variant.batch == smallest
        for case, completion in zip(run.cases, run.completions, strict=True)
    }


def spread(
    tokens: Sequence[int], seconds: Sequence[float], base_tokens: Sequence[int], base_seconds: Sequence[float]
) -> tuple[float, float]:
    """(low, high) of a ratio of sums over pairs of runs: the 5th and 95th percentile of its bootstrap.

    The pairs are drawn anew, with replacement, ``RESAMPLES`` times (always the same draws: a report is repeatable); each
    time the ratio is made of the sums. One pair has no spread.
    """
    columns = np.array([tokens, seconds, base_tokens, base_seconds], dtype=np.float64)
    pairs = np.random.default_rng(0).integers(len(tokens), size=(RESAMPLES, len(tokens)))
    sums = columns[:, pairs].sum(axis=-1)
    low, high = np.percentile((sums[0] / sums[2]) * (sums[3] / sums[1]), SPREAD)
    return float(low), float(high)


def acceptance_by_position(stats: Iterable[RequestStats]) -> tuple[float, ...]:
    """Accepted at i / drafts that reached i, of several requests together."""
    reached: list[int] = []
    accepted: list[float] = []
    for each in stats:
        for position, (rate, drafts) in enumerate(zip(each.acceptance_by_position, each.reached_by_position, strict=True)):
            if position == len(reached):
                reached.append(0)
                accepted.append(0.0)
            reached[position] += drafts
            accepted[position] += rate * drafts
    return tuple(a / r for a, r in zip(accepted, reached, strict=True))


def paying(row: Row) -> bool:
    """Whether a variant is surely faster than plain decoding, with the same output or none promised: one that may as well lose does not."""
    return row.speedup_low > 1 and (row.identical or row.lossy is not None)


def verdict(rows: Sequence[Row]) -> str:
    """Which method pays here, batch by batch, in one line of plain words."""
    sentences = []
    for batch in sorted({row.variant.batch for row in rows}):
        drafting = [row for row in rows if row.task == ALL and row.variant.batch == batch and row.variant.method != OFF]
        best = max(filter(paying, drafting), key=lambda row: row.speedup, default=None)
        said = "do not speculate"
        if best is not None:
            low, high = f"{best.speedup_low:.2f}", f"{best.speedup_high:.2f}"
            said = f"{best.variant} pays, {best.speedup:.2f} times the tokens/s of plain decoding ({low} to {high})"
            said += f", lossy ({best.lossy})" if best.lossy else ""
        sentences.append(f"batch {batch}: {said}")
    return "; ".join(sentences)


def _row(variant: Variant, task: str, runs: Sequence[Run], base: Sequence[Run], reference: dict[int, tuple[int, ...]]) -> Row:
    tokens, seconds = [run.tokens for run in runs], [run.decode_seconds for run in runs]
    base_tokens, base_seconds = [run.tokens for run in base], [run.decode_seconds for run in base]
    stats = [completion.stats for run in runs for completion in run.completions]
    low, high = spread(tokens, seconds, base_tokens, base_seconds)
    return Row(
        variant=variant,
        task=task,
        tokens_per_second=sum(tokens) / sum(seconds),
        speedup=(sum(tokens) / sum(base_tokens)) * (sum(base_seconds) / sum(seconds)),
        speedup_low=low,
        speedup_high=high,
        mean_acceptance_length=sum(each.emitted_tokens for each in stats) / sum(each.num_spec_steps for each in stats),
        acceptance_by_position=acceptance_by_position(stats),
        overhead=1 - sum(run.engine_seconds for run in runs) / sum(seconds),
        identical=all(
            completion.token_ids == reference[case] for run in runs for case, completion in zip(run.cases, run.completions, strict=True)
        ),
        lossy=next((each.lossy for each in stats if each.lossy), None),
    )
