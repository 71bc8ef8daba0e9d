"""How many of a target's layers should draft for it (speculation.early_exit.layers), if any? Measured on your own prompts, on this machine.

    python scripts/early_exit.py -c smollm2-135m-int4 --prompts prompts.jsonl [--adapter DIR ...]

The target answers each prompt greedily. One pass over each text then gives the residual stream that enters every layer, and the target's
own norm and head on it, or an adapter in the place of that norm, what an exit there would have drafted. While drafts are accepted they are
the text itself, so this is not an estimate: rounds of every cut n and draft length k are counted out. Expected is the speed-up over plain
decoding at batch 1,

    τ(n, k) · T(1) / (T(k + 1) + k · Tₙ(1) − [Tₙ(k + 1) − Tₙ(1)])

with T of the whole target and Tₙ of its first n layers and head, measured for the first and for all but one and linear in between (with an
adapter it is measured itself); the bracket is what the pass that verifies need not read again.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specbuild import config
from specbuild.builders.compilers.base import CompileJob
from specbuild.builders.decoder_spec import DecoderSpec
from specbuild.builders.engines import compile_engine, compile_engines
from specbuild.builders.facts import head_facts
from specbuild.builders.preparation import Preparation, prepare
from specbuild.bundle import StepCost
from specbuild.cli.output import print_table
from specbuild.cli.sources import built, encode
from specbuild.errors import SpecbuildError, UnsupportedError
from specbuild.probe import step_costs
from specbuild.prompts import read_prompts
from specbuild.recipe import LOWER, EarlyExitSection, Recipe, SpeculationSection
from specbuild.runtime.draft import Shape
from specbuild.runtime.draft_times import DraftTimes
from specbuild.runtime.engine import Engine, Step
from specbuild.runtime.engines import load
from specbuild.runtime.generator import Generator
from specbuild.runtime.model import CachedModel
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.step_times import StepTimes

PAYS = 1.03
"""Expected speed-ups below are not worth a larger bundle."""

RUNS = 5
"""Of each measurement."""

Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class Text:
    """A prompt and what the target answered."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Exit:
    """Where the target may be cut, and the adapter that then drafts; None: its norm and head alone."""

    layers: int
    adapter: str | None = None


@dataclass(frozen=True)
class Choice:
    """An exit and the draft length that suits it best."""

    exit: Exit
    first: float
    """Acceptance of a draft's first token, were one drafted at every place."""
    draft_len: int
    tau: float
    """Tokens a target pass."""
    ratio: float
    """Expected speed-up over plain decoding."""


def texts(recipe: Recipe, prompts: Path, limit: int | None, max_tokens: int, threads: int | None) -> list[Text]:
    """What the recipe's own bundle, built where the store lacks it, answers greedily."""
    generator, params = Generator(built(recipe), threads=threads), SamplingParams(temperature=0.0, max_tokens=max_tokens, speculation="off")
    asked = encode(generator, read_prompts(prompts)[:limit], params, None)
    return [Text(prompt, answer.token_ids) for prompt, answer in zip(asked, generator.generate(asked, params), strict=True)]


def cut(recipe: Recipe, place: Exit) -> Preparation:
    """The target alone, cut in two, for one sequence at a time; it gives out what enters every layer but the first."""
    exit_, longest = EarlyExitSection(layers=place.layers, adapter=place.adapter), recipe.speculation.max_draft_len
    speculation = SpeculationSection(method="off", early_exit=exit_, draft_len=1, max_draft_len=longest)
    target = recipe.target.model_copy(update={"max_batch_size": 1})
    preparation = prepare(recipe.model_copy(update={"speculation": speculation, "target": target}))
    taps = tuple(range(1, preparation.models["target"].spec.num_layers))
    return dataclasses.replace(preparation, plan=dataclasses.replace(preparation.plan, taps=taps))


class Head:
    """What a lower part ends with, in the target's own precision: a decoder of no layers."""

    def __init__(self, preparation: Preparation, folder: Path) -> None:
        target, lower, job = preparation.models["target"].spec, preparation.facts(LOWER).spec, CompileJob.of(preparation.plan.recipe, LOWER)
        assert isinstance(lower, DecoderSpec), "a part of the target"
        spec = dataclasses.replace(target.upper(target.num_layers), adapter_size=lower.adapter_size)
        self._engine = load(folder, compile_engine(preparation, job, spec, folder, Path("head")))
        self._storage = self._engine.new_storage(1)
        self._storage.resize(1, np.zeros(1, np.int64))
        tokenizer = preparation.models["target"].tokenizer
        assert tokenizer is not None, "the checkpoint was opened"
        self._size = tokenizer.size

    def likeliest(self, states: NDArray[np.float32]) -> NDArray[np.int64]:
        """The token that the head prefers after each of ``states`` [n,H]."""
        view, parts = self._storage.view, []
        for start in range(0, len(states), view):
            part = np.ascontiguousarray(states[None, start : start + view])
            shape = part.shape[:2]
            step = Step(
                input_ids=np.zeros(shape, np.int64),
                position_ids=np.zeros(shape, np.int64),
                write_index=np.zeros(1, np.int64),
                attention_mask=np.ones((1, 1, shape[1], view), np.bool_),
                logit_rows=np.arange(shape[1])[None],
                features=part,
            )
            parts.append(self._engine.forward(step, self._storage, 0)[0, :, : self._size].argmax(axis=1))
        return np.concatenate(parts)


def hits(heads: Mapping[Exit, Head], target: Engine, written: Sequence[Text]) -> list[Hits]:
    """Of each text [exits, answer]: whether each of ``heads`` would have drafted the token."""
    model, found = CachedModel(target, 1), list[Hits]()
    for text in written:
        model.cache.reserve("text")
        hidden = model.prefill("text", (*text.prompt, *text.answer)[:-1])
        assert hidden is not None, "the target was built with taps"
        model.cache.release("text")
        states = hidden[len(text.prompt) - 1 :].reshape(len(text.answer), -1, target.entry.hidden_size)
        found.append(np.array([head.likeliest(states[:, place.layers - 1]) == text.answer for place, head in heads.items()]))
    return found


def rounds(hit: NDArray[np.bool_], draft_len: int) -> int:
    """Target passes that write an answer whose tokens would be drafted where ``hit``, ``draft_len`` a round."""
    passes = place = 0
    while place < len(hit):
        passes += 1
        missed = np.flatnonzero(~hit[place : place + draft_len])
        place += 1 + int(missed[0] if len(missed) else draft_len)
    return passes


def between(one: Sequence[StepCost], most: Sequence[StepCost], share: float) -> Iterator[StepCost]:
    """Costs ``share`` of the way from those of few layers to those of many."""
    for few, many in zip(one, most, strict=True):
        yield few.model_copy(update={"seconds": few.seconds + share * (many.seconds - few.seconds)})


def choices(
    exits: Sequence[Exit], found: Sequence[Hits], costs: Mapping[str, Sequence[StepCost]], longest: int, context: int
) -> list[Choice]:
    """The best draft length of each exit; ``costs`` of the whole ``target``, of its ``first`` layer and of all ``but one``, and of the
    layers before each adapter with it."""
    target, chosen = StepTimes(costs["target"]), list[Choice]()
    last, tokens = max(place.layers for place in exits), sum(hit.shape[1] for hit in found)
    for index, place in enumerate(exits):
        share = (place.layers - 1) / max(1, last - 1)
        plain = list(between(costs["first"], costs["but one"], share))
        times = DraftTimes(StepTimes(plain if place.adapter is None else costs[place.adapter]), shared=True)
        options = []
        for draft_len in range(1, longest + 1):
            tau = tokens / sum(rounds(hit[index], draft_len) for hit in found)
            seconds = target.seconds(1, 1 + draft_len, context) + times.seconds(1, Shape.chain(draft_len), context)
            options.append((tau * target.seconds(1, 1, context) / seconds, draft_len, tau))
        ratio, draft_len, tau = max(options)
        first = float(np.concatenate([hit[index] for hit in found]).mean())
        chosen.append(Choice(place, first, draft_len, tau, ratio))
    return chosen


def costs_of(engines: Mapping[str, Engine]) -> dict[str, list[StepCost]]:
    """What passes of each take, the engines measured in turns. Of all runs over as many tokens or more the one that the rest of the machine
    disturbed least: none takes longer than one over more tokens."""
    runs = [{name: step_costs(engine) for name, engine in engines.items()} for _ in range(RUNS)]

    def least(name: str, place: int) -> StepCost:
        wanted = runs[0][name][place]
        like = [cost for run in runs for cost in run[name] if (cost.batch, cost.context) == (wanted.batch, wanted.context)]
        return wanted.model_copy(update={"seconds": min(cost.seconds for cost in like if cost.step >= wanted.step)})

    return {name: [least(name, place) for place in range(len(costs))] for name, costs in runs[0].items()}


def measured(recipe: Recipe, written: Sequence[Text], adapters: Sequence[str] = ()) -> list[Choice]:
    """Compile the target with a first cut and a last one, and what drafts with each adapter; measure, and weigh all exits.

    Args:
        adapters: Folders of trained adapters; each says what it comes after.

    Raises:
        PreflightError, CheckpointError: one is not of this target.
    """
    first = cut(recipe, Exit(1))
    spec = first.models["target"].spec
    last = cut(recipe, Exit(max(1, spec.num_layers - 1)))
    adapted = [Exit(head_facts("early_exit", adapter, spec).spec.taps[0], adapter) for adapter in adapters]
    prepared = {place: cut(recipe, place) for place in adapted}
    with tempfile.TemporaryDirectory() as scratch:

        def folder() -> Path:
            return Path(tempfile.mkdtemp(dir=scratch))

        engines: dict[str, Engine] = {}
        for name, preparation in (("but one", last), ("first", first)):
            at = folder()
            target, lower = compile_engines(preparation, at, lambda message: print(message, file=sys.stderr))
            engines |= {name: load(at, lower), "target": load(at, target)}
        for adapter, preparation in zip(adapters, prepared.values(), strict=True):
            job, at = CompileJob.of(preparation.plan.recipe, LOWER), folder()
            engines[adapter] = load(at, compile_engine(preparation, job, preparation.facts(LOWER).spec, at, Path(LOWER)))
        alone = Head(first, folder())
        heads = {Exit(layers): alone for layers in range(1, spec.num_layers)}
        heads |= {place: Head(preparation, folder()) for place, preparation in prepared.items()}
        found = hits(heads, engines["target"], written)
        context = int(np.mean([len(text.prompt) + len(text.answer) / 2 for text in written]))
        return choices(list(heads), found, costs_of(engines), recipe.speculation.max_draft_len, context)


def verdict(chosen: Sequence[Choice]) -> str:
    """The best of them as keys of a recipe, if it pays."""
    best = max(chosen, key=lambda choice: choice.ratio)
    place, expected = best.exit, f"expected at {best.ratio:.2f} × plain decoding"
    if best.ratio < PAYS:
        return f"none pays: the best, {place.layers} of the target's layers, is {expected}"
    adapter = "" if place.adapter is None else f", adapter: {place.adapter}"
    return f"speculation: {{early_exit: {{layers: {place.layers}{adapter}}}, draft_len: {best.draft_len}}} is {expected}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", required=True, help="a recipe: a YAML file or a shipped one's name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe; may be repeated")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with `prompt`, `turns` or `messages`")
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="DIR", help="one that `specbuild train early_exit` made; may be repeated"
    )
    parser.add_argument("--limit", type=int, help="how many of the prompts (all)")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens an answer (96)")
    parser.add_argument("--threads", type=int, help="CPU threads for the answers (all)")
    options = parser.parse_args()
    try:
        recipe = config.load(options.config, settings=options.set).recipe
        if recipe.backend != "onnxruntime":
            raise UnsupportedError(f"backend {recipe.backend!r}: early exit runs on onnxruntime alone; add --set backend=onnxruntime")
        written = texts(recipe, options.prompts, options.limit, options.max_tokens, options.threads)
        chosen = measured(recipe, written, options.adapter)
    except SpecbuildError as error:
        parser.exit(error.exit_code, f"{error}\n")
    rows = [(c.exit.layers, c.exit.adapter or "–", f"{c.first:.2f}", c.draft_len, f"{c.tau:.2f}", f"{c.ratio:.2f}") for c in chosen]
    print_table(["layers", "adapter", "first token accepted", "best draft_len", "τ", "expected × plain"], rows)
    for with_one in (False, True) if options.adapter else (False,):
        some = [choice for choice in chosen if (choice.exit.adapter is not None) == with_one]
        print(f"{'with' if with_one else 'without'} an adapter: {verdict(some)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
