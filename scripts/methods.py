"""What does each method give, on each task? Every method that a bundle has, against plain decoding.

    python scripts/methods.py --prompts spec_bench.jsonl          # the int8 and the int4 target, temperature 0 and 1: hours
    python scripts/methods.py --prompts spec_bench.jsonl -c smollm2-135m-cascade -c smollm2-135m    # three models beside two and two
    python scripts/methods.py --prompts spec_bench.jsonl --set speculation.heads.eagle3.checkpoint=configs:smollm2-135m/eagle3   # one more
    python scripts/methods.py --render docs/methods.md            # what the results so far show, and what is missing

A cell is one task's prompts under one recipe and temperature. In it all methods and plain decoding take turns prompt by prompt, as in
`specbuild bench`, so that whatever drifts on the machine meets all of them alike; recipes take turns cell by cell. A draft model that
only a cascade knows is measured alone too. Results go to a file, a line a cell; a second run goes on where the first one stopped, and
measures anew what was measured with another bundle, machine or setting.
Exit code: 0 every output is that of plain decoding, 4 some differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specbuild import config
from specbuild.bench.machine import machine
from specbuild.bench.measure import OFF, Run, Variant
from specbuild.bench.ranking import against, drafting
from specbuild.bench.report import ALL, Row, plain_outputs, report, verdict
from specbuild.bundle import Bundle
from specbuild.cli.bench import first_of_each_task, length, measured, variants_of
from specbuild.cli.sources import built
from specbuild.prompts import PromptItem, read_prompts
from specbuild.recipe import SpeculationSection, draft_role
from specbuild.runtime.generator import Completion
from specbuild.runtime.proposers import METHODS, available
from specbuild.runtime.proposers.base import Proposer
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.stats import RequestStats

RECIPES = ("smollm2-135m", "smollm2-135m-int4")
SEED = 0

Line = Mapping[str, Any]


class Cell(NamedTuple):
    """What is measured at a time."""

    recipe: str
    temperature: float
    task: str


def run(items: Sequence[PromptItem], bundles: Mapping[str, Bundle], temperatures: Sequence[float], options: argparse.Namespace) -> None:
    """Measure the cells that are missing; each is written down as soon as it is there."""
    settings = {recipe: settings_of(bundle, items, options) for recipe, bundle in bundles.items()}
    tasks = dict.fromkeys(_task(item) for item in items)
    cells = [Cell(*levels) for levels in itertools.product(bundles, temperatures, tasks)]
    lines = [*read(options.results), {"plan": {"cells": cells, "settings": settings}}]
    # Written anew: a line that was cut off must not become the beginning of the next one.
    options.results.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = done(lines, settings)
    turns = itertools.product(temperatures, tasks, bundles)
    todo = [cell for temperature, task, recipe in turns if (cell := Cell(recipe, temperature, task)) not in found]
    for number, cell in enumerate(todo, 1):
        print(f"{number}/{len(todo)} {' '.join(map(str, cell))}", file=sys.stderr)
        own = settings[cell.recipe]
        params = SamplingParams(max_tokens=own["max_tokens"], temperature=cell.temperature, seed=SEED)
        bundle, asked = bundles[cell.recipe], [item for item in items if _task(item) == cell.task]
        (alternatives,) = variants_of(1, own["methods"], own["draft_lens"], [1])
        # What a model costs that only a cascade knows is not known where lengths are chosen.
        plan = [[variant for variant in alternatives if variant.draft_len is not None or variant.method in METHODS]]
        alone = functools.partial(alone_in, bundle, options.threads)
        runs = measured(bundle, asked, plan, params, threads=options.threads, proposers=alone)
        with options.results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"cell": cell, "settings": own, "runs": [written(each) for each in runs]}) + "\n")


def alone_in(bundle: Bundle, threads: int | None, rows: int) -> dict[str, Proposer]:
    """Role → proposer of each draft model that has a name, which no method but a cascade runs."""
    return {draft_role(name): drafting(bundle, name, rows, threads) for name in bundle.manifest.recipe.speculation.drafts}


def _task(item: PromptItem) -> str:
    return item.task or "none"


def settings_of(bundle: Bundle, prompts: Sequence[PromptItem], options: argparse.Namespace) -> dict[str, Any]:
    """All that the figures of a bundle depend on, as JSON has it."""
    recipe = bundle.manifest.recipe
    content = json.dumps([[item.task, item.content] for item in prompts])
    return {
        "bundle": bundle.path.name,
        "precision": recipe.target.precision,
        "speculation": recipe.speculation.model_dump(mode="json"),
        "methods": [*available(bundle), *map(draft_role, recipe.speculation.drafts)],
        "draft_lens": options.draft_len or [recipe.speculation.draft_len, None],
        "prompts": hashlib.sha256(content.encode()).hexdigest()[:12],
        "per_task": options.per_task,
        "max_tokens": options.max_tokens,
        "machine": machine(options.threads),
    }


def done(lines: Sequence[Line], settings: Mapping[str, Line]) -> dict[Cell, list[Run]]:
    """The cells that were measured under just these ``settings``: recipe → all that its figures depend on."""
    cells = ((Cell(*line["cell"]), line) for line in lines if "cell" in line)
    return {cell: list(map(run_of, line["runs"])) for cell, line in cells if settings.get(cell.recipe) == line["settings"]}


def read(results: Path) -> list[Line]:
    """The lines of a results file; a last one that was cut off is left out."""
    lines = results.read_text(encoding="utf-8").splitlines(keepends=True) if results.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def written(run: Run) -> dict[str, Any]:
    """A run as it is written down: what ``run_of`` needs."""
    answers = [{"tokens": one.token_ids, "stats": dataclasses.asdict(one.stats)} for one in run.completions]
    return {"variant": dataclasses.asdict(run.variant), "group": run.group, "task": run.task, "cases": run.cases, "answers": answers}


def run_of(line: Line) -> Run:
    """A run as far as figures are made of it: texts are not kept."""
    completions = [Completion("", tuple(one["tokens"]), "length", None, SEED, (), _stats(one["stats"])) for one in line["answers"]]
    return Run(Variant(**line["variant"]), line["group"], line["task"], tuple(line["cases"]), tuple(completions))


def _stats(values: Line) -> RequestStats:
    return RequestStats(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def joined(cells: Sequence[Sequence[Run]]) -> list[Run]:
    """The runs of several cells as if of one run: groups and cases of each are numbered after those of the one before."""
    runs: list[Run] = []
    for cell in cells:
        groups = max((run.group for run in runs), default=-1) + 1
        cases = max((max(run.cases) for run in runs), default=-1) + 1
        runs += [dataclasses.replace(run, group=groups + run.group, cases=tuple(cases + case for case in run.cases)) for run in cell]
    return runs


def differing(runs: Sequence[Run]) -> dict[Variant, int]:
    """Variant → tokens that are not those of plain decoding with the same seed; one that one of the two lacks differs."""
    reference = plain_outputs(runs)
    found = dict.fromkeys((run.variant for run in runs), 0)
    for run in runs:
        for case, completion in zip(run.cases, run.completions, strict=True):
            pairs = itertools.zip_longest(reference[case], completion.token_ids)
            found[run.variant] += sum(ours != theirs for ours, theirs in pairs)
    return found


def planned(lines: Sequence[Line]) -> tuple[list[Cell], Mapping[str, Line], dict[Cell, list[Run]]]:
    """The cells of the last plan, its settings, and those of its cells that are done."""
    plan = [line["plan"] for line in lines if "plan" in line][-1]
    cells, found = [Cell(*cell) for cell in plan["cells"]], done(lines, plan["settings"])
    return cells, plan["settings"], {cell: found[cell] for cell in cells if cell in found}


def document(lines: Sequence[Line]) -> str:
    """docs/methods.md: the last plan, as far as it is done."""
    cells, settings, found = planned(lines)
    sections = []
    for (recipe, temperature), group in itertools.groupby(cells, key=lambda cell: cell[:2]):
        tasks = [cell.task for cell in group]
        there = [task for task in tasks if Cell(recipe, temperature, task) in found]
        missing = [task for task in tasks if task not in there]
        title = f"## {settings[recipe]['precision']} target (`{recipe}`), temperature {temperature:g}\n"
        models = SpeculationSection.model_validate(settings[recipe]["speculation"]).models
        named = f" Draft models: {', '.join(f'{role} ({model.precision})' for role, model in models.items())}." if models else ""
        title += f"\n{named.strip()}\n" if named else ""
        title += f"\n**Missing: {', '.join(missing)}.**\n" if missing else ""
        runs = joined([found[Cell(recipe, temperature, task)] for task in there])
        sections.append(title + (section(runs, settings[recipe]) if runs else ""))
    one = settings[cells[0].recipe]
    words = {**one, **one["machine"], "threads": one["machine"]["threads"] or "all", "done": len(found), "total": len(cells)}
    return HEAD.format(**words) + "\n" + "\n".join(sections)


def section(runs: Sequence[Run], settings: Line) -> str:
    """One recipe at one temperature."""
    rows, differ = report(runs), differing(runs)
    whole = [row for row in rows if row.task == ALL]
    tasks = list(dict.fromkeys(row.task for row in rows))
    by_place = {(row.variant, row.task): row for row in rows}

    def matrix(title: str, shown: Callable[[Row], str]) -> str:
        body = [[name(row.variant, settings), *(shown(by_place[row.variant, task]) for task in tasks)] for row in whole]
        return f"\n### {title}\n\n{table(['method', *tasks], body)}"

    same = [f"lossy ({row.lossy})" if row.lossy else str(differ[row.variant]) for row in whole]
    body = [[name(row.variant, settings), *(shown(row) for shown in SHOWN.values()), told] for row, told in zip(whole, same, strict=True)]
    summary = table(["all tasks", *SHOWN, "Differing tokens"], body)
    tables = "".join(itertools.starmap(matrix, SHOWN.items()))
    return f"\n{summary}\nOver all tasks, {verdict(rows)}.{cascade_pays(runs, whole)}\n{tables}"


def cascade_pays(runs: Sequence[Run], rows: Sequence[Row]) -> str:
    """The cascade beside the fastest of its models alone; nothing where one of the two is missing."""
    cascades = [row for row in rows if row.variant.method == "cascade"]
    pairs = [row for row in rows if row.variant.method == "draft_model" or row.variant.method.startswith("draft.")]
    if not cascades or not pairs:
        return ""
    cascade, best = (max(some, key=operator.attrgetter("tokens_per_second")) for some in (cascades, pairs))
    low, high = against(runs, cascade.variant, best.variant)
    ratio = cascade.tokens_per_second / best.tokens_per_second
    said = "pays" if low > 1 else "does not surely pay" if high > 1 else "does not pay"
    return f" The cascade {said} beside {best.variant.method} alone: {ratio:.2f} ({low:.2f}–{high:.2f}) times its tokens/s."


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows))


def name(variant: Variant, settings: Line) -> str:
    """A method and, where it is made of others, of which; and how many tokens it drafts a round."""
    speculation = settings["speculation"]
    parts = {
        OFF: "plain",
        "cascade": f"cascade ({' → '.join(speculation['cascade'])})",
        "merged": f"merged ({' + '.join(speculation['merged'])})",
        "hybrid": f"hybrid ({speculation['hybrid_retrieval']}, else {speculation['hybrid_model']})",
    }
    drafts = {0: "", None: ", k chosen"}.get(variant.draft_len, f", k = {variant.draft_len}")
    return parts.get(variant.method, variant.method) + drafts


SHOWN: Mapping[str, Callable[[Row], str]] = {
    "τ": lambda row: f"{row.mean_acceptance_length:.2f}",
    "Accepted by position": lambda row: " ".join(f"{rate:.2f}" for rate in row.acceptance_by_position) or "–",
    "Tokens/s": lambda row: f"{row.tokens_per_second:.1f}",
    "Ratio to plain": lambda row: f"{row.speedup:.2f} ({row.speedup_low:.2f}–{row.speedup_high:.2f})",
}
"""Figure → how a row says it."""

HEAD = """# Methods: what each gives, task by task

Written by `scripts/methods.py`; its docstring says how to run it. {done} of {total} cells are measured.

Prompts a task: at most {per_task}. Tokens an answer: at most {max_tokens}. One sequence at a time; all methods and plain decoding took
turns prompt by prompt in one run. No method remembers other texts: `suffix` drafts from the prompt and the answer alone, where a server
gives it its history too. τ is emitted tokens a target pass. "Accepted by position" is the share of drafts that had the next token
right, of those that were right so far. A ratio is of all tokens over all seconds, prompts left out, to plain decoding's; in brackets
the 5th to 95th percentile with prompts drawn anew: of a single prompt there is none. k is the draft length, "k chosen" what a server
does: round by round as much as pays by measured cost and acceptance, which may be nothing. Differing tokens are those that are not plain
decoding's with the same seed.

Speeds are this machine's: {processor}, {cores} cores, threads of an engine: {threads}; {system}, specbuild {specbuild}, onnxruntime
{onnxruntime}, Python {python}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="JSON lines, as `specbuild bench` takes them")
    parser.add_argument("-c", "--recipe", action="append", metavar="RECIPE", help=f"may be repeated ({', '.join(RECIPES)})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of all recipes")
    parser.add_argument("--temperature", type=float, action="append", metavar="T", help="may be repeated (0, 1)")
    parser.add_argument("--per-task", type=int, default=10, help="prompts a task (10)")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens an answer (128)")
    parser.add_argument(
        "--draft-len", type=length, action="append", metavar="K", help="draft tokens a round; may be repeated (the recipe's, auto)"
    )
    parser.add_argument("--threads", type=int, help="CPU threads of an engine (all)")
    parser.add_argument("--results", type=Path, default=Path("methods.jsonl"), help="where results are gathered (methods.jsonl)")
    parser.add_argument("--render", type=Path, metavar="FILE", help="write what the results show, and run nothing")
    options = parser.parse_args()
    if options.render is None:
        if options.prompts is None:
            parser.error("--prompts is needed to run")
        items = first_of_each_task(read_prompts(options.prompts), options.per_task)
        recipes = [config.load(reference, settings=options.set).recipe for reference in options.recipe or RECIPES]
        bundles = {recipe.name: built(recipe, steps=True) for recipe in recipes}
        run(items, bundles, options.temperature or [0.0, 1.0], options)
    lines = read(options.results)
    if not any("plan" in line for line in lines):
        parser.error(f"{options.results} has no results yet; run with --prompts first")
    if options.render is not None:
        options.render.write_text(document(lines), encoding="utf-8")
    rows = itertools.chain.from_iterable(map(report, planned(lines)[2].values()))
    return 4 if any(not row.identical and row.lossy is None for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
