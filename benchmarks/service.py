"""The service in process: what concurrency and speculation give, what a long prompt costs its neighbours, what a known prefix saves.

    python benchmarks/service.py -c smollm2-135m-int4 --prompts FILE.jsonl

Settings take turns within one run; ratios are the result.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

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


class Client:
    """One answer and when its parts came."""

    def __init__(self) -> None:
        self.began = perf_counter()
        self.times: list[float] = []
        self.tokens: tuple[int, ...] = ()
        self.done = threading.Event()

    def delta(self, delta: Delta) -> None:
        self.times.append(perf_counter())
        self.tokens += delta.tokens
        if delta.completion is not None:
            self.done.set()

    def failed(self, error: SpecbuildError) -> None:
        print(f"failed: {error}", file=sys.stderr)
        self.done.set()

    def cancelled(self) -> bool:
        return False

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.began

    @property
    def gaps(self) -> list[float]:
        """Seconds between rounds that gave something."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def load(service: Service, prompts: Sequence[list[int]], concurrency: int, params: SamplingParams) -> tuple[float, list[tuple[int, ...]]]:
    """(tokens a second, outputs) of ``prompts`` asked by so many clients at a time, each waiting for its answer."""
    outputs: dict[int, tuple[int, ...]] = {}
    numbers = iter(range(len(prompts)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            client = Client()
            service.submit(prompts[number], params, client)
            client.done.wait()
            outputs[number] = client.tokens

    began = perf_counter()
    workers = [threading.Thread(target=work) for _ in range(concurrency)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = perf_counter() - began
    return sum(map(len, outputs.values())) / seconds, [outputs[number] for number in range(len(prompts))]


def throughput(service: Service, prompts: Sequence[list[int]], levels: Sequence[int], max_tokens: int) -> list[dict[str, Any]]:
    """Tokens a second (prompts included in the time) at each concurrency, speculation off and as the service chooses."""
    rows: list[dict[str, Any]] = []
    kinds = {name: SamplingParams(temperature=0, max_tokens=max_tokens, speculation=name) for name in ("off", "ngram")}
    for concurrency in levels:
        rates: dict[str, list[float]] = {}
        outputs, chosen = {}, Counter[int]()
        for name in ("off", "ngram", "off", "ngram"):
            before = service.stats().draft_lens
            rate, out = load(service, prompts, concurrency, kinds[name])
            rates.setdefault(name, []).append(rate)
            outputs[name] = out
            if name == "ngram":
                chosen += service.stats().draft_lens - before
        ratio = sum(rates["ngram"]) / sum(rates["off"])
        identical = outputs["off"] == outputs["ngram"]
        rows.append({"concurrency": concurrency, "off": max(rates["off"]), "ngram": max(rates["ngram"]), "ratio": ratio})
        rows[-1] |= {"identical": identical, "drafted": dict(sorted(chosen.items()))}
        print(rows[-1], file=sys.stderr)
    return rows


def stall(service: Service, prompts: Sequence[list[int]], long: list[int]) -> dict[str, float]:
    """How long a running stream, one of ``prompts``, waits for a token while ``long`` is admitted, as multiples of its usual gap."""
    params = SamplingParams(temperature=0, max_tokens=500, speculation="off", ignore_eos=True)
    streams, guest = [Client() for _ in prompts], Client()
    for prompt, stream in zip(prompts, streams, strict=True):
        service.submit(prompt, params, stream)
    while min(len(stream.times) for stream in streams) < 60:
        threading.Event().wait(0.01)
    first = streams[0]
    usual, start = median(first.gaps[-40:]), len(first.times)
    service.submit(long, SamplingParams(temperature=0, max_tokens=1, speculation="off"), guest)
    guest.done.wait()
    gaps = sorted(gap / usual for gap in first.gaps[start : len(first.times) - 1])
    for stream in streams:
        stream.done.wait()
    middle, most = gaps[len(gaps) // 2], gaps[len(gaps) * 95 // 100]
    seen = {"usual_ms": usual * 1e3, "median": middle, "p95": most, "longest": gaps[-1], "guest_first_token_s": guest.first}
    return {"streams": len(prompts)} | seen


def prefix(service: Service, long: list[int]) -> dict[str, float]:
    """Time to the first token of a second request with the same 1,000 tokens in front."""
    params = SamplingParams(temperature=0, max_tokens=8)
    times = []
    for end in ([11, 12, 13], [21, 22, 23]):
        client = Client()
        service.submit([*long[:1000], *end], params, client)
        client.done.wait()
        times.append(client.first)
    return {"first_s": times[0], "second_s": times[1], "ratio": times[1] / times[0]}


@click.command(help=__doc__)
@click.option("-c", "--config", "reference", default="smollm2-135m-int4", show_default=True)
@click.option("--prompts", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--count", default=32, show_default=True, help="Prompts of a load.")
@click.option("--max-tokens", default=64, show_default=True)
@click.option("--levels", default="1,2,4,8,16", show_default=True)
@click.option("--cut", type=int, help="Only the first so many tokens of each prompt: what decoding gives, nearly without reading.")
def main(reference: str, file: Path, count: int, max_tokens: int, levels: str, cut: int | None) -> None:
    bundle = build(config.load(reference).recipe, store=Store.default(), probe=probe).bundle
    items = read_prompts(file)
    chosen = items[:: max(1, len(items) // count)][:count]
    generator = Generator(bundle, interactive=True)
    prompts = [generator.encode([{"role": "user", "content": item.content}]) for item in chosen]
    long = [token for prompt in prompts for token in prompt][:1500]
    service = Service(generator)
    prompts = [prompt[:cut] for prompt in prompts]
    result: dict[str, Any] = {"throughput": throughput(service, prompts, [int(level) for level in levels.split(",")], max_tokens)}
    result["stall"] = [stall(service, [prompt[:200] for prompt in prompts[:streams]], long) for streams in (1, 4, generator.rows - 1)]
    service.close()
    remembering = Service(Generator(bundle, interactive=True, remember=8192))
    result["prefix"] = prefix(remembering, long)
    remembering.close()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
