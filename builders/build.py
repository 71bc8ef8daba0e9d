"""Runs a plan: compile and probe in a staging folder, describe it in a manifest, publish it in one step."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import specbuild
from specbuild.bundle import MANIFEST, TOKENIZER, Bundle, EngineEntry, Manifest, Vocabulary, file_digest
from specbuild.errors import BuildError
from specbuild.recipe import Recipe

from .checkpoint import Checkpoint
from .compilers.base import Role
from .engines import Prober, Progress, compared, compile_engines, measure
from .facts import ModelFacts
from .plan import BuildPlan
from .plan import engine_bytes as estimate
from .preparation import Preparation, prepare
from .store import Store

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class BuildResult:
    """A published bundle. Its recipe is the one asked for: defaults of generation may differ from those that it was built with."""

    bundle: Bundle
    built: bool
    """False: it was there already."""


def build(
    recipe: Recipe, *, store: Store, force: bool = False, probe: Prober | None = None, progress: Progress = lambda message: None
) -> BuildResult:
    """The bundle of ``recipe``, built unless the store has it (or ``force``).

    Raises:
        CheckpointError, UnsupportedError, PreflightError, EnvironmentLacksError: before anything is compiled.
        BuildError: a compiler refused, or the disk is full. Nothing half-made is left.
    """
    progress("checking the checkpoints")
    preparation = prepare(recipe)
    folder = preparation.plan.folder
    assert folder is not None, "a prepared build has all that its digest covers"
    if not force and store.path(folder).exists():
        return BuildResult(_opened(store.path(folder), recipe), built=False)
    progress(f"waiting for the lock of {folder}")
    with _disk_errors(store, preparation, probe is not None), store.staging(folder) as staging:
        if not force and store.path(folder).exists():  # another process built it while this one waited
            return BuildResult(_opened(store.path(folder), recipe), built=False)
        _check_room(store, preparation, probe is not None)
        engines = compile_engines(preparation, staging, progress)
        if probe is not None:
            engines = measure(engines, preparation, staging, probe, progress)
        progress("writing the manifest")
        engines = tuple(entry.model_copy(update={"vocabulary": _own_vocabulary(preparation, entry.role)}) for entry in engines)
        _write_tokenizers(preparation, engines, staging)
        manifest = _manifest(preparation, engines, staging)
        (staging / MANIFEST).write_text(manifest.model_dump_json(indent=2), encoding="utf-8")
        Bundle.open(staging)
        return BuildResult(_opened(store.publish(folder), recipe), built=True)


def _opened(path: Path, recipe: Recipe) -> Bundle:
    bundle = Bundle.open(path)
    return dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"recipe": recipe}))


def _own_vocabulary(preparation: Preparation, role: Role) -> Vocabulary | None:
    """Of a draft model that the recipe gives one; None: its ids are the target's."""
    section = preparation.plan.recipe.speculation.models.get(role)
    if section is None or section.vocabulary == "same":
        return None
    return _vocabulary(preparation.models[role], preparation.checkpoints[role])


def _write_tokenizers(preparation: Preparation, engines: tuple[EngineEntry, ...], staging: Path) -> None:
    files = preparation.checkpoints["target"].tokenizer
    folder = staging / TOKENIZER
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(files.tokenizer_json)
    (folder / "generation_config.json").write_text(json.dumps(dict(files.generation_config), indent=2), encoding="utf-8")
    if files.chat_template is not None:
        (folder / "chat_template.jinja").write_text(files.chat_template, encoding="utf-8")
    for entry in engines:
        if entry.vocabulary is not None:
            (staging / entry.tokenizer).mkdir()
            (staging / entry.tokenizer / "tokenizer.json").write_bytes(preparation.checkpoints[entry.role].tokenizer.tokenizer_json)


def _manifest(preparation: Preparation, engines: tuple[EngineEntry, ...], staging: Path) -> Manifest:
    plan, models = preparation.plan, preparation.models
    assert plan.digest is not None
    return Manifest(
        digest=plan.digest,
        recipe=plan.recipe,
        checkpoints={role: preparation.facts(role).digest or "" for role in (*(step.role for step in plan.steps), *preparation.heads)},
        tools=_tools(plan),
        vocabulary=_vocabulary(models["target"], preparation.checkpoints["target"]),
        engines=engines,
        files={file.relative_to(staging).as_posix(): file_digest(file) for file in sorted(staging.rglob("*")) if file.is_file()},
    ).sealed()


def _tools(plan: BuildPlan) -> dict[str, str]:
    libraries = {library: version(library) for library in ("numpy", "onnx-ir")}
    return {"specbuild": specbuild.__version__, "python": platform.python_version(), plan.flavour: plan.version or "", **libraries}


def _vocabulary(model: ModelFacts, checkpoint: Checkpoint) -> Vocabulary:
    assert model.tokenizer is not None
    return Vocabulary(
        size=model.tokenizer.size,
        bos_token_id=checkpoint.bos_token_id,
        eos_token_ids=checkpoint.eos_token_ids,
        pad_token_id=checkpoint.pad_token_id,
    )


def _bytes_needed(preparation: Preparation, probed: bool) -> int:
    """What the store holds at the fullest moment: all engines and the float32 ones to compare with."""
    plan, models = preparation.plan, preparation.models
    steps = {models[step.role].digest: step for step in plan.steps if probed and compared(step)}
    references = (estimate(models[step.role].spec, "float32", width=4, positions=step.shape.capacity) for step in steps.values())
    return plan.engine_bytes + sum(references)


def _check_room(store: Store, preparation: Preparation, probed: bool) -> None:
    needed, free = _bytes_needed(preparation, probed), shutil.disk_usage(store.home).free
    if needed > free:
        raise BuildError(_disk_full(store, "checked before compiling", needed, free))


@contextmanager
def _disk_errors(store: Store, preparation: Preparation, probed: bool) -> Iterator[None]:
    """Turn whatever a full disk raised, however deep a compiler has wrapped it, into one sentence."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            # NumPy reports a short write as an OSError that has words and no number.
            if isinstance(cause, OSError) and cause.errno in (*_DISK_FULL, None):
                free = shutil.disk_usage(store.home).free
                how = os.strerror(cause.errno) if cause.errno else str(cause)
                raise BuildError(_disk_full(store, how, _bytes_needed(preparation, probed), free)) from error
            cause = cause.__cause__ or cause.__context__
        raise


def _disk_full(store: Store, how: str, needed: int, free: int) -> str:
    return (
        f"{store.home}: the disk is full ({how}): the build needs about {needed:,} bytes and {free:,} are free; "
        "free some space (`specbuild engine prune`) or set SPECBUILD_HOME to a larger disk"
    )
