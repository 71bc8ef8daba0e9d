"""What a build will do, decided without doing it: steps, sizes, memory and the digest that names the bundle.

Pure. ``--dry-run`` prints it, ``build`` follows it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbuild.bundle import SCHEMA_VERSION, canonical_json
from specbuild.recipe import Backend, Precision, Recipe

from .compilers.base import CompileJob, EngineShape, Role
from .decoder_spec import DecoderSpec
from .facts import ModelFacts

BLOCK = 32
"""Weights that share a scale in an int8 or int4 engine."""

# What a bundle's digest leaves out of its recipe. Content stands for the address it came from; a config section only checks
# the checkpoint; the rest are defaults of generation, which never change an engine: editing one of them compiles nothing.
# Every other key counts, one that is added later too.
_NOT_BUILT: dict[str, Any] = {
    "name": True,
    "checkpoint": True,
    "target": {"config"},
    "speculation": {
        "method": True,
        "draft_len": True,
        "verification": True,
        "ngram_max": True,
        "ngram_min": True,
        "suffix_history": True,
        "cascade": True,
        "hybrid_retrieval": True,
        "hybrid_min_match": True,
        "hybrid_model": True,
        "draft": {"checkpoint", "config"},
        "drafts": {"__all__": {"checkpoint", "config"}},
    },
}


@dataclass(frozen=True)
class ToolFacts:
    """The compiler that a build uses."""

    flavour: str
    version: str | None
    """None: not installed here; the plan then has no digest."""
    shapes: Mapping[Role, EngineShape]
    source: str
    """Digest of the code that writes graphs: a changed graph is another engine though the release is the same."""


@dataclass(frozen=True)
class EngineStep:
    """One engine to compile."""

    role: Role
    checkpoint: str
    precision: Precision
    backend: Backend
    parameters: int
    twin: Role | None
    """An earlier step of the same checkpoint and job: its engine serves this role too."""
    engine_bytes: int
    """Estimate: the weights. A TensorRT plan has some tens of megabytes of kernels beside them. 0 with a twin."""
    kv_bytes_per_token: int
    """One token of one sequence, keys and values of all layers."""
    kv_bytes: int
    """The whole cache: max_batch_size sequences of the full capacity."""
    job: CompileJob
    shape: EngineShape


@dataclass(frozen=True)
class BuildPlan:
    """The whole build."""

    recipe: Recipe
    flavour: str
    version: str | None
    steps: tuple[EngineStep, ...]
    digest: str | None
    """None: something that it covers is unknown here (a checkpoint not read, a compiler not installed)."""

    @property
    def folder(self) -> str | None:
        """Name of the bundle in the store."""
        return None if self.digest is None else f"{self.recipe.name}-{self.digest[:12]}"

    @property
    def engine_bytes(self) -> int:
        """Of all engines: what the store needs."""
        return sum(step.engine_bytes for step in self.steps)

    @property
    def kv_bytes(self) -> int:
        """Of all caches: what running at full batch and length needs beside the engines."""
        return sum(step.kv_bytes for step in self.steps)

    def describe(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {
            "name": self.recipe.name,
            "backend": self.recipe.backend,
            "compiler": {"flavour": self.flavour, "version": self.version},
            "digest": self.digest,
            "folder": self.folder,
            "steps": [
                {
                    "role": step.role,
                    "checkpoint": step.checkpoint,
                    "precision": step.precision,
                    "parameters": step.parameters,
                    "shares_engine_of": step.twin,
                    "engine_bytes": step.engine_bytes,
                    "kv_dtype": step.shape.kv_dtype,
                    "kv_bytes_per_token": step.kv_bytes_per_token,
                    "kv_bytes": step.kv_bytes,
                    "max_batch_size": step.job.max_batch_size,
                    "max_seq_len": step.job.max_seq_len,
                    "capacity": step.shape.capacity,
                    "compute_capabilities": list(step.shape.compute_capabilities),
                }
                for step in self.steps
            ],
            "engine_bytes": self.engine_bytes,
            "kv_bytes": self.kv_bytes,
            "total_bytes": self.engine_bytes + self.kv_bytes,
        }


def plan(recipe: Recipe, models: tuple[ModelFacts, ...], tools: ToolFacts) -> BuildPlan:
    """The plan for ``models`` (the target, then its draft models)."""
    steps = tuple(_step(recipe, model, _twin(recipe, model, models), tools.shapes[model.role]) for model in models)
    return BuildPlan(recipe, tools.flavour, tools.version, steps, _digest(recipe, models, tools))


def _twin(recipe: Recipe, model: ModelFacts, models: tuple[ModelFacts, ...]) -> Role | None:
    """The earlier role whose engine would be the very same: an int4 target that drafts for itself, say."""
    job = CompileJob.of(recipe, model.role)
    for other in models[: models.index(model)]:
        same_content = other.source == model.source if model.digest is None else other.digest == model.digest
        if same_content and dataclasses.replace(CompileJob.of(recipe, other.role), role=model.role) == job:
            return other.role
    return None


def _step(recipe: Recipe, model: ModelFacts, twin: Role | None, shape: EngineShape) -> EngineStep:
    job = CompileJob.of(recipe, model.role)
    width = 4 if shape.kv_dtype == "float32" else 2
    per_token = 2 * model.spec.num_layers * model.spec.num_kv_heads * model.spec.head_dim * width
    return EngineStep(
        role=model.role,
        checkpoint=model.source,
        precision=job.precision,
        backend=recipe.backend,
        parameters=parameters(model.spec),
        twin=twin,
        engine_bytes=0 if twin else engine_bytes(model.spec, job.precision, width=width, positions=shape.capacity),
        kv_bytes_per_token=per_token,
        kv_bytes=per_token * job.max_batch_size * shape.capacity,
        job=job,
        shape=shape,
    )


def parameters(spec: DecoderSpec) -> int:
    """Weights of the model, a tied head counted once; norms and biases, a thousandth of the whole, left out."""
    return _matrices(spec) + spec.vocab_size * spec.hidden_size * (1 if spec.tied_head else 2)


def engine_bytes(spec: DecoderSpec, precision: Precision, *, width: int, positions: int) -> int:
    """Size of an engine: its weights, which are nearly all of it.

    Args:
        width: Bytes of an activation: of what is not quantised, and of scales.
        positions: Rows of the two rotation tables.
    """
    embedding = spec.vocab_size * spec.hidden_size
    tables = positions * spec.head_dim * width
    if precision in ("int8", "int4"):
        # A quantised head shares nothing with the embedding that is gathered from, tied or not.
        bits = 8 if precision == "int8" else 4
        quantised = _matrices(spec) + embedding
        return embedding * width + quantised * bits // 8 + quantised // BLOCK * width + tables
    return parameters(spec) * width + tables


def _matrices(spec: DecoderSpec) -> int:
    """Weights of all layers' matrices."""
    attention = spec.hidden_size * spec.head_dim * 2 * (spec.num_heads + spec.num_kv_heads)
    return spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)


def _digest(recipe: Recipe, models: tuple[ModelFacts, ...], tools: ToolFacts) -> str | None:
    checkpoints = {model.role: model.digest for model in models}
    if tools.version is None or None in checkpoints.values():
        return None
    excluded = _NOT_BUILT | ({"tensorrt": True} if recipe.backend == "onnxruntime" else {})
    content = {
        "schema_version": SCHEMA_VERSION,
        "recipe": recipe.model_dump(mode="json", exclude=excluded),
        "checkpoints": checkpoints,
        "compiler": [tools.flavour, tools.version],
        "compute_capabilities": {role: shape.compute_capabilities for role, shape in tools.shapes.items()},
        "source": tools.source,
    }
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()
