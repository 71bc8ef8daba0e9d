"""``specbuild engine``: compile bundles, and look after those there are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specbuild.cli.main import NounGroup
from specbuild.cli.output import JSON_OPTION, RECIPE_OPTION, SET_OPTION, print_json, print_table, progress, say, size

if TYPE_CHECKING:
    from specbuild.builders.plan import BuildPlan
    from specbuild.builders.store import StoredBundle
    from specbuild.bundle import Bundle, EngineEntry

BUNDLE_ARGUMENT = click.argument("bundle")


@click.group(cls=NounGroup, default="list")
def command() -> None:
    """A BUNDLE is a folder, the name of one in the store, or a recipe's name (its newest). The store is the folder SPECBUILD_HOME,
    by default in your cache folder."""


@command.command()
@RECIPE_OPTION
@SET_OPTION
@click.option("--dry-run", is_flag=True, help="Print the plan (steps, sizes, memory) and build nothing.")
@click.option("--force", is_flag=True, help="Build even if the store has the bundle.")
@click.option("--no-probe", is_flag=True, help="Do not measure the engines; the manifest says so.")
@JSON_OPTION
def build(reference: str, settings: tuple[str, ...], dry_run: bool, force: bool, no_probe: bool, as_json: bool) -> None:
    """Compile the engines of a recipe into the store, unless they are there; print the bundle's folder."""
    from specbuild import config
    from specbuild.builders.build import build as build_bundle
    from specbuild.builders.preparation import dry_plan
    from specbuild.builders.store import Store

    recipe, store = config.load(reference, settings=settings).recipe, Store.default()
    if dry_run:
        _print_plan(dry_plan(recipe), store.home, as_json)
        return
    from specbuild.probe import probe

    started = time.perf_counter()
    with progress() as show:
        result = build_bundle(recipe, store=store, force=force, probe=None if no_probe else probe, progress=show)
    seconds = time.perf_counter() - started
    if as_json:
        print_json(_describe(result.bundle) | {"built": result.built, "seconds": round(seconds, 3)})
        return
    say(f"built in {seconds:.1f} s" if result.built else "already built; --force builds it anew")
    click.echo(result.bundle.path)


@command.command(name="list")
@JSON_OPTION
def list_(as_json: bool) -> None:
    """List the bundles in the store, the newest first."""
    from specbuild.builders.store import Store

    store = Store.default()
    bundles = store.bundles()
    if as_json:
        print_json([_stored(entry) for entry in bundles])
    elif bundles:
        rows = [[entry.path.name, size(entry.bytes), _age(entry.published), entry.problem or "ok"] for entry in bundles]
        print_table(["bundle", "size", "age", "state"], rows)
    else:
        say(f"no bundles in {store.home}; build one with `specbuild engine build -c RECIPE` (`specbuild config list` shows recipes)")


@command.command()
@BUNDLE_ARGUMENT
@JSON_OPTION
def show(bundle: str, as_json: bool) -> None:
    """Print what a bundle is made of: engines, sizes, tools, measurements."""
    opened = _open(bundle)
    if as_json:
        print_json(_describe(opened) | {"manifest": opened.manifest.model_dump(mode="json")})
        return
    manifest = opened.manifest
    facts = {"path": opened.path, "digest": manifest.digest, "recipe": manifest.recipe.name}
    facts |= {f"checkpoint of the {role}": digest for role, digest in manifest.checkpoints.items()}
    facts |= {"tools": ", ".join(f"{name} {version}" for name, version in manifest.tools.items())}
    print_table(["", "value"], facts.items())
    columns = ["engine", "file", "compiler", "for", "precision", "batch", "tokens", "KV a token", "invariant over"]
    print_table(columns, [_engine_row(engine) for engine in manifest.engines])


@command.command()
@BUNDLE_ARGUMENT
@JSON_OPTION
def verify(bundle: str, as_json: bool) -> None:
    """Compare the manifest and every file of a bundle with their digests."""
    opened = _open(bundle)
    opened.verify_files()
    if as_json:
        print_json({"path": opened.path, "verified": True, "files": len(opened.manifest.files)})
    else:
        click.echo(f"{opened.path}: {len(opened.manifest.files)} files as they were built")


@command.command()
@BUNDLE_ARGUMENT
def path(bundle: str) -> None:
    """Print the folder of a bundle."""
    click.echo(_open(bundle).path)


@command.command()
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Remove bundles published more than DAYS ago.")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Remove all but the N newest of each recipe.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed and remove nothing.")
@JSON_OPTION
def prune(older_than: float | None, keep: int | None, dry_run: bool, as_json: bool) -> None:
    """Remove old bundles, and what interrupted builds left behind. A bundle being built is never touched."""
    from specbuild.builders.store import Store

    seconds = None if older_than is None else older_than * 86400
    removed = Store.default().prune(older_than=seconds, keep=keep, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "removed": [_stored(entry) for entry in removed]})
        return
    for entry in removed:
        click.echo(entry.path)
    say(f"{'would remove' if dry_run else 'removed'} {len(removed)} bundles, {size(sum(entry.bytes for entry in removed))}")


def _open(reference: str) -> Bundle:
    from specbuild.builders.store import Store
    from specbuild.bundle import Bundle

    return Bundle.open(Store.default().find(reference))


def _describe(bundle: Bundle) -> dict[str, Any]:
    from specbuild.builders.store import folder_bytes

    manifest = bundle.manifest
    engines = [{"role": engine.role, "file": engine.file, "precision": engine.precision} for engine in manifest.engines]
    return {"path": bundle.path, "digest": manifest.digest, "bytes": folder_bytes(bundle.path), "engines": engines}


def _stored(entry: StoredBundle) -> dict[str, Any]:
    return {"name": entry.name, "path": entry.path, "bytes": entry.bytes, "published": entry.published, "problem": entry.problem}


def _engine_row(engine: EngineEntry) -> list[Any]:
    probe = engine.probe
    invariant = "not measured"
    if probe is not None:
        measured = {"step": probe.step_invariant, "batch": probe.batch_invariant, "view": probe.view_invariant, "tree": probe.trees}
        invariant = ", ".join(name for name, holds in measured.items() if holds) or "nothing"
    compiler = f"{engine.flavour} {engine.version}"
    target = ", ".join(engine.compute_capabilities) or ("CPU" if engine.backend == "onnxruntime" else "GPU present")
    limits = [engine.precision, engine.max_batch_size, engine.max_seq_len, size(engine.kv_bytes_per_token)]
    return [engine.role, engine.file, compiler, target, *limits, invariant]


def _print_plan(plan: BuildPlan, home: Path, as_json: bool) -> None:
    path = home / plan.folder if plan.folder else None
    exists = path is not None and path.exists()
    if as_json:
        print_json(plan.describe() | {"path": path, "exists": exists})
        return
    rows = [
        [
            f"{number}. {f'use the {step.twin} as' if step.twin else 'compile'} {step.role}",
            step.checkpoint,
            step.precision,
            f"{step.parameters / 1e6:,.0f} M",
            size(step.engine_bytes),
            size(step.kv_bytes_per_token),
            f"{size(step.kv_bytes)} ({step.job.max_batch_size} × {step.shape.capacity})",
        ]
        for number, step in enumerate(plan.steps, 1)
    ]
    print_table(["step", "checkpoint", "precision", "parameters", "engine", "KV a token", "KV (batch × capacity)"], rows)
    for step in plan.steps:
        if step.moe is not None:
            moe, tokens = step.moe, step.shape.max_step
            few, many = (
                f"{moe.experts_per_token} of {moe.experts} experts a layer",
                f"about {moe.touched(tokens):.1f} when it verifies {tokens}",
            )
            click.echo(f"experts   the {step.role} reads {few} for one token, {many}")
    capabilities = ", ".join(dict.fromkeys(name for step in plan.steps for name in step.shape.compute_capabilities))
    click.echo(f"compiler  {plan.flavour} {plan.version or '(cannot compile here: see `specbuild doctor`)'} {capabilities}".rstrip())
    click.echo(f"memory    {size(plan.engine_bytes)} engines + {size(plan.kv_bytes)} KV = {size(plan.engine_bytes + plan.kv_bytes)}")
    click.echo(f"bundle    {path or f'{home}/{plan.recipe.name}-… (its digest needs the checkpoints and the compiler)'}")
    click.echo(f"state     {'already built' if exists else 'not built'}")


def _age(published: float) -> str:
    hours = (time.time() - published) / 3600
    return f"{hours * 60:.0f} min" if hours < 2 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
