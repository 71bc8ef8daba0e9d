"""Does a real server keep its promises? A tritonserver of its own over a bundle, asked over gRPC on the loopback interface.

    python scripts/served.py --prompts spec_bench.jsonl                                  # all parts, about 12 minutes on 2 cores
    python scripts/served.py --prompts spec_bench.jsonl --parts soak --soak-seconds 60   # one of them, shorter

identity  Prompts streamed 16 at a time, speculation on, are what plain decoding alone in process gives, token for token; the
          server's counters are the sums of the figures that came with the answers.
seeds     Sampled with seeds, the text is the same alone, 16 at a time, and after a restart.
soak      Minutes at concurrency 32 with clients that leave, have deadlines, or are killed: whatever is answered is right, and in
          the end nothing is held, memory and threads are what they were after the warm-up, and the counters balance.

Each part prints a line of JSON, and what it means on stderr. Exit code: 0 every promise was kept, 4 one was not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from soak import Soak, endless
from watch import Balance, counters, settled

from specbuild import config
from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.errors import SpecbuildError
from specbuild.probe import probe
from specbuild.prompts import read_prompts
from specbuild.runtime.generator import Generator, Prompt
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import AsyncClient
from specbuild.triton.installation import find
from specbuild.triton.render import ModelSettings, render
from specbuild.triton.server import TritonServer, free_ports
from specbuild.triton.wire import Answer

SEEDED, SOAKED = 12, 24
"""Prompts of these parts."""
Text = tuple[str, tuple[int, ...]]
"""An answer as it is compared."""


@dataclass(frozen=True)
class Question:
    """What is asked, and the answer that is right."""

    prompt: Prompt
    params: SamplingParams
    text: Text = ("", ())


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """``count`` of them from all over the list, so that every task is there; again from the start where they are too few."""
    return [prompts[index * len(prompts) // count if count <= len(prompts) else index % len(prompts)] for index in range(count)]


def plain(bundle: Bundle, questions: Sequence[Question]) -> list[Question]:
    """The questions with their answers: plain decoding, one by one, in this process."""
    generator = Generator(bundle, batch=1)
    answered = []
    for question in questions:
        (completion,) = generator.generate([question.prompt], replace(question.params, speculation="off", draft_len=None))
        answered.append(replace(question, text=(completion.text, completion.token_ids)))
    return answered


@contextmanager
def serving(bundle: Bundle) -> Iterator[TritonServer]:
    """A server that has just been started, ready."""
    with tempfile.TemporaryDirectory(prefix="specbuild-served-") as folder:
        render([ModelSettings(bundle=bundle.path.resolve())], Path(folder) / "repository")
        with TritonServer(find(), Path(folder) / "repository", free_ports()) as server:
            server.wait_ready()
            yield server


def ask(server: TritonServer, questions: Sequence[Question], concurrency: int) -> list[Answer]:
    """Answers in order, each streamed."""

    async def together() -> list[Answer]:
        free = asyncio.Semaphore(concurrency)
        async with AsyncClient(f"{server.ports.host}:{server.ports.grpc}") as client:

            async def one(question: Question) -> Answer:
                async with free, client.stream(question.prompt, question.params) as stream:
                    chunks = [chunk async for chunk in stream]
                answer = stream.answer
                text = "".join(chunk.text for chunk in chunks), tuple(token for chunk in chunks for token in chunk.tokens)
                assert text == (answer.text, answer.tokens), "an answer is its chunks"
                return answer

            return await asyncio.gather(*(one(question) for question in questions))

    return asyncio.run(together())


def differing(one: Sequence[int], other: Sequence[int]) -> int:
    """Places at which two answers differ; a token that one of them lacks differs."""
    return sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))


def greedy(bundle: Bundle, prompts: Sequence[Prompt], lengths: Sequence[int]) -> list[Question]:
    """Half of them with the draft length that the server chooses, half with the longest: drafts there are in any case."""
    draft_lens = None, bundle.manifest.recipe.speculation.max_draft_len
    params = [SamplingParams(temperature=0, max_tokens=n, draft_len=draft_lens[i % 2]) for i, n in enumerate(lengths)]
    return plain(bundle, [Question(prompt, param) for prompt, param in zip(prompts, params, strict=True)])


def identity(bundle: Bundle, prompts: Sequence[Prompt], options: argparse.Namespace) -> dict[str, Any]:
    """On a server that answers nothing else: its counters are these answers' figures."""
    questions = greedy(bundle, spread(prompts, options.count), [options.max_tokens] * options.count)
    with serving(bundle) as server:
        answers = ask(server, questions, options.concurrency)
        balance = Balance()
        for answer in answers:
            balance.add(answer.figures)
        counted = settled(server.ports)
    tokens = [differing(question.text[1], answer.tokens) for question, answer in zip(questions, answers, strict=True)]
    texts = sum(question.text[0] != answer.text for question, answer in zip(questions, answers, strict=True))
    problems = [f"{sum(tokens)} tokens and {texts} texts differ from plain decoding"] if any(tokens) or texts else []
    problems += balance.differences(counted)
    return {
        "part": "identity",
        "prompts": len(questions),
        "concurrency": options.concurrency,
        "tokens": sum(len(question.text[1]) for question in questions),
        "differing_tokens": sum(tokens),
        "differing_texts": texts,
        "sums": balance.sums,
        "counters": counters(counted),
        "problems": problems,
    }


def seeds(bundle: Bundle, prompts: Sequence[Prompt], options: argparse.Namespace) -> dict[str, Any]:
    """Each question twice in the crowd, among other neighbours."""
    questions = [
        Question(prompt, SamplingParams(temperature=0.9, seed=seed, max_tokens=options.max_tokens))
        for seed, prompt in enumerate(spread(prompts, SEEDED))
    ]
    with serving(bundle) as server:
        alone = [(answer.text, answer.tokens) for answer in ask(server, questions, 1)]
        crowd = [(answer.text, answer.tokens) for answer in ask(server, [*questions, *reversed(questions)], options.concurrency)]
    with serving(bundle) as server:
        again = [(answer.text, answer.tokens) for answer in ask(server, questions, options.concurrency)]
    differ = {
        "in a crowd": sum(one != other for one, other in zip([*alone, *reversed(alone)], crowd, strict=True)),
        "after a restart": sum(one != other for one, other in zip(alone, again, strict=True)),
    }
    return {
        "part": "seeds",
        "prompts": len(questions),
        "tokens": sum(len(tokens) for _, tokens in alone),
        "differing": differ,
        "problems": [f"{count} sampled texts differ {where}" for where, count in differ.items() if count],
    }


def soak(bundle: Bundle, prompts: Sequence[Prompt], options: argparse.Namespace) -> dict[str, Any]:
    """See ``Soak``. The questions' lengths go from 8 tokens to 48."""
    lengths = [8 + 40 * index // (SOAKED - 1) for index in range(SOAKED)]
    questions = greedy(bundle, spread(prompts, SOAKED), lengths)
    with serving(bundle) as server:
        found = asyncio.run(Soak(server, questions, options.soak_seconds).run())
        right = [(answer.text, answer.tokens) for answer in ask(server, questions, 1)] == [question.text for question in questions]
        if not right or server.trouble is not None:
            found["problems"].append("the server does not answer rightly any more")
    return {"part": "soak", **found}


PARTS = {"identity": identity, "seeds": seeds, "soak": soak}


def summary(found: dict[str, Any]) -> str:
    """For people."""
    figures = "\n".join(f"  {key}: {value}" for key, value in found.items() if key not in ("part", "problems"))
    problems = "".join(f"\n  PROBLEM: {problem}" for problem in found["problems"])
    return f"{found['part']}: {'NOT KEPT' if problems else 'kept'}\n{figures}{problems}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", default="smollm2-135m-int4", metavar="RECIPE", help="(smollm2-135m-int4)")
    parser.add_argument("--prompts", type=Path, metavar="FILE.jsonl", help="a JSON object a line")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=f"({','.join(PARTS)})")
    parser.add_argument("--count", type=int, default=64, help="prompts of identity (64)")
    parser.add_argument("--concurrency", type=int, default=16, help="of identity and seeds (16)")
    parser.add_argument("--max-tokens", type=int, default=48, help="of an answer in identity and seeds (48)")
    parser.add_argument("--soak-seconds", type=float, default=300, help="(300)")
    parser.add_argument("--endless", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.endless is not None:  # the client that the soak kills
        asyncio.run(endless(options.endless))
    if options.prompts is None or not PARTS.keys() >= set(options.parts):
        parser.error(f"--prompts is needed, and --parts are of {', '.join(PARTS)}")
    try:
        bundle = build(config.load(options.config).recipe, store=Store.default(), probe=probe).bundle
        items = [item.content for item in read_prompts(options.prompts)]
        prompts: list[Prompt] = [[{"role": "user", "content": item}] if isinstance(item, str) else item for item in items]
        kept = True
        for part in options.parts:
            found = PARTS[part](bundle, prompts, options)
            print(json.dumps(found), flush=True)
            print(summary(found), file=sys.stderr)
            kept = kept and not found["problems"]
    except SpecbuildError as error:
        print(f"served: {error}", file=sys.stderr)
        return error.exit_code
    return 0 if kept else 4


if __name__ == "__main__":
    sys.exit(main())
