"""What the server costs one client: an answer streamed through Triton's gRPC against the same one from a service in this process.

    python benchmarks/served.py -c smollm2-135m-int4 --prompts FILE.jsonl

The two take turns prompt by prompt, so that one computes while the other waits; each has engines, threads and settings of its own and
the same, and remembers no prompt. Ratios are the result.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles
from time import perf_counter

import click

from specbuild import config
from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.errors import SpecbuildError
from specbuild.probe import probe
from specbuild.prompts import read_prompts
from specbuild.runtime.generator import Delta, Generator
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.service import Service
from specbuild.triton import Client
from specbuild.triton.installation import find
from specbuild.triton.render import ModelSettings, render
from specbuild.triton.server import TritonServer, free_ports

MODES = ("off", "ngram")
REMEMBER = 0
"""Tokens of past texts: each answer reads its prompt anew."""


@dataclass(frozen=True)
class Sample:
    """One answer as its reader saw it. Seconds from asking."""

    tokens: tuple[int, ...]
    first: float
    whole: float

    @property
    def decode(self) -> float:
        """Seconds after the first token."""
        return self.whole - self.first


Ask = Callable[[list[int], SamplingParams], Sample]


class Inbox:
    """The sink of a request in process: what comes is read in another thread, as a client's is."""

    def __init__(self) -> None:
        self.items: SimpleQueue[Delta | SpecbuildError] = SimpleQueue()
        self.delta = self.failed = self.items.put

    def cancelled(self) -> bool:
        return False


def in_process(service: Service, prompt: list[int], params: SamplingParams) -> Sample:
    began, first = perf_counter(), 0.0
    tokens: tuple[int, ...] = ()
    inbox = Inbox()
    service.submit(prompt, params, inbox)
    while True:
        item = inbox.items.get()
        if isinstance(item, SpecbuildError):
            raise item
        first = first or perf_counter() - began
        tokens += item.tokens
        if item.completion is not None:
            return Sample(tokens, first, perf_counter() - began)


def served(client: Client, prompt: list[int], params: SamplingParams) -> Sample:
    began, first = perf_counter(), 0.0
    with client.stream(prompt, params) as stream:
        for _ in stream:
            first = first or perf_counter() - began
        whole = perf_counter() - began
        return Sample(stream.answer.tokens, first, whole)


def compare(ways: dict[str, Ask], prompts: Sequence[list[int]], params: SamplingParams, rounds: int) -> dict[str, object]:
    """Every prompt by each way, now by one first, now by the other. Tokens that differ end it."""
    whole, decode, added = [], [], []
    for turn in range(rounds):
        taken: dict[str, list[Sample]] = {way: [] for way in ways}
        for number, prompt in enumerate(prompts):
            for way in list(ways) if (turn + number) % 2 == 0 else list(reversed(ways)):
                taken[way].append(ways[way](prompt, params))
            inside, outside = taken["in_process"][-1], taken["served"][-1]
            if inside.tokens != outside.tokens:
                raise SystemExit(f"prompt {number}: the server's tokens differ from those in process")
            added.append((outside.first - inside.first) * 1e3)
        whole.append(sum(one.whole for one in taken["in_process"]) / sum(one.whole for one in taken["served"]))
        decode.append(sum(one.decode for one in taken["in_process"]) / sum(one.decode for one in taken["served"]))
        print(f"{params.speculation} round {turn + 1}: {whole[-1]:.3f}x, after the first token {decode[-1]:.3f}x", file=sys.stderr)
    return {
        "ratio": median(whole),
        "ratios": whole,
        "ratio_after_first": median(decode),
        "ratios_after_first": decode,
        "first_token_added_ms": median(added),
        "first_token_added_quartiles_ms": quantiles(added, n=4)[::2],
    }


@click.command(help=__doc__)
@click.option("-c", "--config", "reference", default="smollm2-135m-int4", show_default=True)
@click.option("--prompts", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--count", default=6, show_default=True, help="Prompts.")
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(reference: str, file: Path, count: int, max_tokens: int, rounds: int) -> None:
    bundle = build(config.load(reference).recipe, store=Store.default(), probe=probe).bundle
    generator = Generator(bundle, interactive=True, remember=REMEMBER)
    items = read_prompts(file)
    prompts = [generator.encode([{"role": "user", "content": item.content}]) for item in items[:: max(1, len(items) // count)][:count]]
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        render([ModelSettings(bundle=bundle.path.resolve(), parameters={"remember": str(REMEMBER)})], repository)
        with TritonServer(find(), repository, free_ports()) as server:
            server.wait_ready()
            client = Client(f"{server.ports.host}:{server.ports.grpc}")
            service = Service(generator)
            ways: dict[str, Ask] = {
                "in_process": lambda prompt, params: in_process(service, prompt, params),
                "served": lambda prompt, params: served(client, prompt, params),
            }
            result = {}
            for mode in MODES:
                params = SamplingParams(temperature=0, max_tokens=max_tokens, speculation=mode)
                for ask in ways.values():  # warm up, as both choose draft lengths by what they have measured
                    ask(prompts[0], params)
                result[mode] = compare(ways, prompts, params, rounds)
            service.close()
    print(json.dumps(result | {"prompts": len(prompts)}, indent=2))


if __name__ == "__main__":
    main()
