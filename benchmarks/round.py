"""What a round costs beside its engine pass: sampling against greedy, and four sequences together against one. Plain decoding.

    python benchmarks/round.py -c smollm2-135m-int4 --prompts FILE.jsonl

The settings take turns prompt by prompt in one process; the ratios are the result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click

from specbuild import config
from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.prompts import read_prompts
from specbuild.runtime.generator import Completion, Generator
from specbuild.runtime.sampling import SamplingParams

TOGETHER = 4


def rate(completions: Sequence[Completion]) -> float:
    """Tokens a second of a group that decoded together: all tokens by the time that the slowest took."""
    return sum(c.stats.emitted_tokens for c in completions) / max(c.stats.decode_seconds for c in completions)


@click.command(help=__doc__)
@click.option("-c", "--config", "reference", default="smollm2-135m-int4", show_default=True)
@click.option("--prompts", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--groups", default=8, show_default=True, help="Groups of four prompts.")
@click.option("--max-tokens", default=96, show_default=True)
def main(reference: str, file: Path, groups: int, max_tokens: int) -> None:
    generator = Generator(build(config.load(reference).recipe, store=Store.default()).bundle, batch=TOGETHER)
    greedy = SamplingParams(temperature=0, max_tokens=max_tokens, speculation="off", ignore_eos=True)
    sampled = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=max_tokens, speculation="off", ignore_eos=True)
    items = read_prompts(file)
    step = max(1, len(items) // (groups * TOGETHER))
    prompts = [generator.encode([{"role": "user", "content": item.content}]) for item in items[::step]][: groups * TOGETHER]
    generator.generate(prompts[:TOGETHER], greedy)
    sampling, together, overhead = [], [], []
    for start in range(0, len(prompts), TOGETHER):
        group = prompts[start : start + TOGETHER]
        for turn, prompt in enumerate(group):
            kinds = {"greedy": greedy, "sampled": sampled}
            order = list(kinds) if turn % 2 == 0 else list(reversed(kinds))
            answers = {kind: generator.generate([prompt], kinds[kind]) for kind in order}
            sampling.append(rate(answers["greedy"]) / rate(answers["sampled"]) - 1)
            stats = answers["greedy"][0].stats
            overhead.append(1 - stats.engine_seconds / stats.decode_seconds)
        alone = [generator.generate([prompt], greedy)[0] for prompt in group]
        seconds = sum(c.stats.decode_seconds for c in alone)
        together.append(rate(generator.generate(group, greedy)) / (sum(c.stats.emitted_tokens for c in alone) / seconds))
        print(f"group {start // TOGETHER + 1}: together {together[-1]:.2f}x", file=sys.stderr)
    print(
        json.dumps(
            {
                "sampling_costs": median(sampling),
                "four_together": median(together),
                "four_together_low": min(together),
                "overhead": median(overhead),
                "prompts": len(prompts),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
