"""The engines of a plan: each compiled once, whatever number of roles it has, then measured."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np

from specbuild.bundle import EngineEntry, LowerPart, Probe
from specbuild.errors import EnvironmentLacksError, UnsupportedError
from specbuild.recipe import LOWER, HeadRole

from .compilers.base import CompileJob, Role
from .decoder_spec import DecoderSpec
from .head_spec import HeadSpec, LayerHead, MedusaHead
from .network.decoder import decoder
from .network.heads import head
from .plan import EngineStep
from .preparation import Preparation

Prober = Callable[[Path, EngineEntry, EngineEntry | None], Probe]
"""(folder, engine, the float32 engine of the same model or None) → what was measured; files are relative to the folder."""
Progress = Callable[[str], None]
Engines = tuple[EngineEntry, ...]

_REFERENCES = ".references"


def compile_engines(preparation: Preparation, staging: Path, progress: Progress) -> Engines:
    """Compile every step of the plan into ``staging/engines/<role>``; a step with a twin shares the twin's engine."""
    done: dict[Role, EngineEntry] = {}
    for step in preparation.plan.steps:
        if step.twin is not None:
            done[step.role] = done[step.twin].model_copy(update={"role": step.role})
            continue
        progress(f"compiling the {step.role}: {step.checkpoint} as {step.precision}")
        spec = preparation.facts(step.role).spec
        done[step.role] = compile_engine(preparation, step.job, spec, staging, Path("engines") / step.role)
    if LOWER in done:
        done["target"] = _joined(done[LOWER], done["target"], preparation.plan.taps)
    return tuple(done.values())


def measure(engines: Engines, preparation: Preparation, staging: Path, probe: Prober, progress: Progress) -> Engines:
    """The same entries with what ``probe`` measured; engines that were compiled for another machine stay without.

    Float32 engines to compare with are compiled beside the others, once a model, and removed.
    """
    probes: dict[Role, Probe | None] = {}
    references: dict[str | None, EngineEntry] = {
        preparation.facts(step.role).digest: entry
        for step, entry in zip(preparation.plan.steps, engines, strict=True)
        if entry.precision == "float32" and entry.role != LOWER
    }
    for step, entry in zip(preparation.plan.steps, engines, strict=True):
        if step.twin is not None:
            probes[step.role] = probes[step.twin]
            continue
        digest = preparation.facts(step.role).digest
        if compared(step) and digest not in references:
            progress(f"compiling the {step.role} in float32 to compare with")
            job = dataclasses.replace(step.job, precision="float32")
            references[digest] = compile_engine(
                preparation, job, preparation.models[step.role].spec, staging, Path(_REFERENCES) / step.role
            )
        progress(f"measuring the {step.role}")
        try:
            probes[step.role] = probe(staging, entry, references[digest] if compared(step) else None)
        except (EnvironmentLacksError, UnsupportedError) as error:  # a plan for a GPU that is elsewhere, or one that no runtime takes yet
            progress(f"not measured: {error}")
            probes[step.role] = None
    shutil.rmtree(staging / _REFERENCES, ignore_errors=True)
    return tuple(entry.model_copy(update={"probe": found}) for entry, found in zip(engines, probes.values(), strict=True))


def compared(step: EngineStep) -> bool:
    """Whether a step's engine has a float32 one to be compared with: whole decoders on the CPU, unless their weights are float32 anyway."""
    return step.backend == "onnxruntime" and step.precision != "float32" and step.role not in (LOWER, *get_args(HeadRole))


def compile_engine(preparation: Preparation, job: CompileJob, spec: DecoderSpec | HeadSpec, staging: Path, folder: Path) -> EngineEntry:
    """The engine of ``spec``, the model of the job's role or a part of it, in ``staging/folder``."""
    weights, compiler = preparation.weights[job.role], preparation.compiler
    shape = compiler.shape(job)
    taps: tuple[int, ...] = ()
    if isinstance(spec, DecoderSpec):
        taps = _taps(spec, preparation.plan.taps) if job.role in ("target", LOWER) else ()
        graph = decoder(spec, weights, capacity=shape.graph_capacity, positions=shape.capacity, taps=taps)
    else:
        graph = head(spec, weights, capacity=shape.graph_capacity, positions=shape.capacity)
    (staging / folder).mkdir(parents=True)
    compiled = compiler.compile(graph, job, staging / folder)
    return EngineEntry(
        role=job.role,
        file=(folder / compiled.file).as_posix(),
        backend=compiler.name,
        flavour=compiler.flavour,
        version=compiler.version(),
        compute_capabilities=compiled.shape.compute_capabilities,
        precision=job.precision,
        kv_dtype=compiled.shape.kv_dtype,
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        **_signature(spec, taps),
        d2t=_write_draft_ids(preparation, job.role, staging, folder),
        max_batch_size=job.max_batch_size,
        max_seq_len=job.max_seq_len,
        capacity=compiled.shape.capacity,
        static_view=compiled.shape.static_view,
        max_step=compiled.shape.max_step,
        row_multiple=compiled.shape.row_multiple,
        max_prefill=compiled.shape.max_prefill,
    )


def _taps(spec: DecoderSpec, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Hidden states that the target, or this part of it, gives out: those wanted by heads, and of a lower part what the upper one takes."""
    end = spec.layers.stop
    return tuple(tap for tap in (*spec.layers, end) if tap in wanted or (tap == end and spec.layers_after))


def _joined(lower: EngineEntry, upper: EngineEntry, taps: tuple[int, ...]) -> EngineEntry:
    """The target that two parts make."""
    part = LowerPart(file=lower.file, num_layers=lower.num_layers)
    return upper.model_copy(update={"lower": part, "num_layers": lower.num_layers + upper.num_layers, "first_layer": 0, "taps": taps})


def _signature(spec: DecoderSpec | HeadSpec, taps: tuple[int, ...]) -> dict[str, Any]:
    """Fields of an ``EngineEntry``: the caches of the engine and the hidden states that it gives out or takes."""
    if isinstance(spec, MedusaHead):
        none = {"num_layers": 0, "num_kv_heads": 0, "head_dim": 0, "sliding_window": None}
        return none | {"taps": spec.taps, "predictions": spec.predictions}
    assert isinstance(spec, DecoderSpec | LayerHead)
    layer = spec if isinstance(spec, DecoderSpec) else spec.layer
    caches = {name: getattr(layer, name) for name in ("num_layers", "num_kv_heads", "head_dim", "sliding_window")}
    return caches | {"first_layer": layer.first_layer, "taps": spec.taps if isinstance(spec, LayerHead) else taps}


def _write_draft_ids(preparation: Preparation, role: Role, staging: Path, folder: Path) -> str | None:
    """Path of ``d2t.npy`` beside the engine; None: the engine's ids are the target's."""
    ids = preparation.heads[role].d2t if role in preparation.heads else None
    if ids is None:
        return None
    file = folder / "d2t.npy"
    np.save(staging / file, ids)
    return file.as_posix()
