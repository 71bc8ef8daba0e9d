"""A mixture of experts beside a dense model of equal active size: what verifying more tokens costs each, and what is accepted.

    python benchmarks/moe.py

Both have random weights, so a router chooses evenly and a text means nothing; costs are those of real ones of that size. Absolute times
belong to the machine; the ratios T(B, S) / T(B, 1), measured in turns in one process, are the result. Prints Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.build import build
from specbuild.builders.decoder_spec import MoeSpec
from specbuild.builders.network.moe import EXPERTS, ROUTE
from specbuild.builders.store import Store
from specbuild.builders.weights import role_shapes, tensor_name
from specbuild.bundle import Bundle
from specbuild.recipe import Recipe
from specbuild.runtime.engines import load
from specbuild.runtime.generator import Generator
from specbuild.runtime.model import CachedModel, Feed
from specbuild.runtime.sampling import SamplingParams

CONTEXT = 128
BATCHES, STEPS = (1, 4, 8), (1, 2, 3, 5, 8)
PROMPTS, TOKENS, TEMPERATURE = 16, 64, 0.4


def config(experts: int, chosen: int, inner: int) -> dict[str, dict[str, Any]]:
    """Name → Hugging Face config of the mixture, and of the twin whose one MLP is as wide as all experts that a token chooses."""
    shared = {"vocab_size": 512, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
    shared |= {"head_dim": 64, "max_position_embeddings": 1024, "tie_word_embeddings": True}
    mixture = {"num_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": inner, "norm_topk_prob": True}
    return {
        "experts": {"model_type": "qwen3_moe", "intermediate_size": chosen * inner} | shared | mixture,
        "dense twin": {"model_type": "qwen3", "intermediate_size": chosen * inner} | shared,
    }


def write_checkpoint(folder: Path, config: dict[str, Any]) -> Path:
    """A checkpoint of random weights that keep activations near one; its tokens are bytes."""
    folder.mkdir(parents=True)
    spec, random = decoder_spec(config), np.random.default_rng(0)
    tensors = {
        tensor_name(family(spec.family), role): np.ones(shape, np.float32)
        if len(shape) == 1
        else random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))
        for role, shape in role_shapes(spec).items()
        if not (role == "head" and spec.tied_head)
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[]))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def built(work: Path, name: str, described: dict[str, Any]) -> Bundle:
    """The model as int8 target, with its own int4 build as draft."""
    checkpoint = write_checkpoint(work / name, described)
    target = {"precision": "int8", "max_batch_size": max(BATCHES), "max_seq_len": 512}
    data = {"name": name.replace(" ", "-"), "checkpoint": str(checkpoint), "target": target, "speculation": {"draft": {}}}
    return build(Recipe.from_mapping(data, origin=name), store=Store(work / "store")).bundle


@dataclass
class Passes:
    """Passes of an engine over B sequences of S new tokens, all different, after a context of zeros."""

    bundle: Bundle

    def __post_init__(self) -> None:
        entry = self.bundle.manifest.engines[0]
        self._engine = load(self.bundle.path, entry)
        self._tokens = np.random.default_rng(1).integers(0, entry.vocab_size, (max(BATCHES), max(STEPS))).tolist()

    def ready(self, batch: int) -> CachedModel:
        """A cache of ``batch`` sequences at the context's length."""
        model = CachedModel(self._engine, batch, padded=False)
        for row in range(batch):
            model.cache.reserve(row)
        model.cache.make_room(CONTEXT + max(STEPS))
        for row in range(batch):
            model.cache.commit(row, np.arange(CONTEXT))
        return model

    def seconds(self, model: CachedModel, batch: int, step: int) -> float:
        """Of one pass, the second in a row: the other engine has just driven this one's weights from the processor's cache."""
        feeds: dict[Hashable, Feed] = {r: Feed(tuple(self._tokens[r][:step]), wanted=tuple(range(step))) for r in range(batch)}
        model.feed(feeds)
        began = perf_counter()
        model.feed(feeds)
        return perf_counter() - began


def touched(bundle: Bundle, tokens: int, draws: int) -> float:
    """Experts of a layer that a pass over ``tokens`` random tokens sent rows to, mean over layers and ``draws`` passes."""
    entry = bundle.manifest.engines[0]
    file = bundle.path / entry.file
    graph = onnx.load(file, load_external_data=False)
    routes = [n.output[1] for n in graph.graph.node if any(p.key == EXPERTS and p.value == ROUTE for p in n.metadata_props)]
    graph.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [None, None]) for name in routes)
    watched = file.with_name("watched.onnx")
    onnx.save(graph, watched)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of caches that are copied, as they may be here
    session = onnxruntime.InferenceSession(str(watched), options, providers=["CPUExecutionProvider"])
    random, counts = np.random.default_rng(2), []
    cache = np.zeros((1, entry.num_kv_heads, tokens, entry.head_dim), np.float32)
    inputs = {f"past_{kind}.{layer}": cache for layer in range(entry.num_layers) for kind in ("key", "value")}
    inputs |= {"position_ids": np.arange(tokens)[None], "write_index": np.zeros(1, np.int64), "logit_rows": np.zeros((1, 1), np.int64)}
    inputs |= {"attention_mask": np.tri(tokens, dtype=bool)[None, None]}
    for _ in range(draws):
        text = random.integers(0, entry.vocab_size, (1, tokens))
        counts += [len(np.unique(chosen)) for chosen in session.run(routes, inputs | {"input_ids": text})]
    return float(np.mean(counts))


def costs(bundles: dict[str, Bundle], moe: MoeSpec, repeats: int) -> None:
    """Print the table of T(B, S) / T(B, 1) and of experts touched."""
    passes = {name: Passes(bundle) for name, bundle in bundles.items()}
    print("| B | S | experts touched | E·(1 − (1 − K/E)^t) | " + " | ".join(f"{name}, ms | T(B,S)/T(B,1)" for name in passes) + " |")
    print("|" + "---|" * (4 + 2 * len(passes)))
    for batch in BATCHES:
        ready = {name: subject.ready(batch) for name, subject in passes.items()}
        times: dict[tuple[str, int], list[float]] = {(name, step): [] for name in passes for step in STEPS}
        for _ in range(repeats + 1):
            for name, step in times:
                times[name, step].append(passes[name].seconds(ready[name], batch, step))
        # The first quartile: what else runs on the machine only ever adds.
        typical = {key: float(np.quantile(seconds[1:], 0.25)) for key, seconds in times.items()}
        for step in STEPS:
            seen = touched(bundles["experts"], batch * step, draws=20)
            cells = [f"{1e3 * typical[name, step]:.2f} | {typical[name, step] / typical[name, 1]:.2f}" for name in passes]
            print(f"| {batch} | {step} | {seen:.1f} | {moe.touched(batch * step):.1f} | " + " | ".join(cells) + " |", flush=True)


def acceptance(bundles: dict[str, Bundle]) -> None:
    """Print what the int4 build of each model, and prompt lookup, draft for the int8 one."""
    print("\n| model | drafts by | τ | accepted / drafted |\n|---|---|---|---|")
    for name, bundle in bundles.items():
        generator = Generator(bundle, batch=1)
        prompts = np.random.default_rng(3).integers(1, 256, (PROMPTS, 16)).tolist()
        for method in ("draft_model", "ngram"):
            params = [
                SamplingParams(temperature=TEMPERATURE, seed=seed, max_tokens=TOKENS, ignore_eos=True, speculation=method, draft_len=4)
                for seed in range(PROMPTS)
            ]
            stats = [generator.generate([prompt], one)[0].stats for prompt, one in zip(prompts, params, strict=True)]
            mean_length = sum(s.emitted_tokens for s in stats) / sum(s.num_spec_steps for s in stats)
            rate = sum(s.num_accepted_tokens for s in stats) / max(1, sum(s.num_draft_tokens for s in stats))
            print(f"| {name} | {method} | {mean_length:.2f} | {rate:.2f} |")


@click.command(help=__doc__)
@click.option("--experts", default=16, show_default=True)
@click.option("--chosen", default=2, show_default=True, help="Experts that a token chooses.")
@click.option("--inner", default=1024, show_default=True, help="Width of an expert.")
@click.option("--repeats", default=60, show_default=True, help="Passes timed for each cell.")
def main(experts: int, chosen: int, inner: int, repeats: int) -> None:
    with TemporaryDirectory() as temporary:
        described = config(experts, chosen, inner)
        bundles = {name: built(Path(temporary), name, one) for name, one in described.items()}
        moe = decoder_spec(described["experts"]).moe
        assert moe is not None
        costs(bundles, moe, repeats)
        acceptance(bundles)


if __name__ == "__main__":
    main()
