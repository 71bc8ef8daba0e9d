"""What a build will do, decided without doing it: steps, sizes, memory and the digest that names the bundle.

Pure. ``--dry-run`` prints it, ``build`` follows it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from specbuild.bundle import SCHEMA_VERSION, canonical_json
from specbuild.recipe import Backend, HeadRole, Precision, Recipe

from .compilers.base import CompileJob, EngineShape, Role
from .decoder_spec import DecoderSpec, MoeSpec
from .facts import HeadFacts, ModelFacts, parts
from .head_spec import ExitAdapter, HeadSpec, LayerHead, head_shapes
from .passes.quantize import BLOCK
from .weights import role_shapes

# What a bundle's digest leaves out of its recipe. Content stands for the address it came from; a config section only checks
# the checkpoint; the rest are defaults of generation, which never change an engine: editing one of them compiles nothing.
# Every other key counts, one that is added later too.
_NOT_BUILT: dict[str, Any] = {
    "name": True,
    "checkpoint": True,
    "target": {"config"},
    "speculation": {
        "heads": {role: {"checkpoint"} for role in get_args(HeadRole)},
        "early_exit": {"adapter"},
        "method": True,
        "draft_len": True,
        "tree_budget": True,
        "verification": True,
        "lossy": True,
        "ngram_max": True,
        "ngram_min": True,
        "suffix_history": True,
        "cascade": True,
        "hybrid_retrieval": True,
        "hybrid_min_match": True,
        "hybrid_model": True,
        "merged": True,
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
    moe: MoeSpec | None
    job: CompileJob
    shape: EngineShape


@dataclass(frozen=True)
class BuildPlan:
    """The whole build."""

    recipe: Recipe
    flavour: str
    version: str | None
    steps: tuple[EngineStep, ...]
    taps: tuple[int, ...]
    """Hidden states that the target gives out: those of all heads, ascending, each once."""
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
                    "experts": None if step.moe is None else _experts(step.moe, step.shape.max_step),
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
            "taps": list(self.taps),
            "engine_bytes": self.engine_bytes,
            "kv_bytes": self.kv_bytes,
            "total_bytes": self.engine_bytes + self.kv_bytes,
        }


def plan(recipe: Recipe, models: tuple[ModelFacts, ...], heads: tuple[HeadFacts, ...], tools: ToolFacts) -> BuildPlan:
    """The plan for ``models`` (the target, then its draft models), some in parts, with draft heads and perhaps an adapter."""
    models = parts(recipe, models, heads)
    own = [head for head in heads if not isinstance(head.spec, ExitAdapter)]
    steps = [_step(recipe, model, _twin(recipe, model, models), tools.shapes[model.role]) for model in models]
    steps += [_step(recipe, head, None, tools.shapes[head.role]) for head in own]
    taps = tuple(sorted({tap for head in own for tap in head.spec.taps}))
    return BuildPlan(recipe, tools.flavour, tools.version, tuple(steps), taps, _digest(recipe, (*models, *heads), tools))


def _twin(recipe: Recipe, model: ModelFacts, models: tuple[ModelFacts, ...]) -> Role | None:
    """The earlier role whose engine would be the very same: an int4 target that drafts for itself, say."""
    job = CompileJob.of(recipe, model.role)
    for other in models[: models.index(model)]:
        same_content = other.source == model.source if model.digest is None else other.digest == model.digest
        if same_content and other.spec == model.spec and dataclasses.replace(CompileJob.of(recipe, other.role), role=model.role) == job:
            return other.role
    return None


def _step(recipe: Recipe, model: ModelFacts | HeadFacts, twin: Role | None, shape: EngineShape) -> EngineStep:
    job = CompileJob.of(recipe, model.role)
    width = 4 if shape.kv_dtype == "float32" else 2
    per_token = _cache_width(model.spec) * width
    moe = model.spec.moe if isinstance(model.spec, DecoderSpec) else None
    block = BLOCK if moe else shape.weight_block  # experts are most of it
    return EngineStep(
        role=model.role,
        checkpoint=model.source,
        precision=job.precision,
        backend=recipe.backend,
        parameters=parameters(model.spec),
        twin=twin,
        engine_bytes=0 if twin else engine_bytes(model.spec, job.precision, width=width, positions=shape.capacity, block=block),
        kv_bytes_per_token=per_token,
        kv_bytes=per_token * job.max_batch_size * shape.capacity,
        moe=moe,
        job=job,
        shape=shape,
    )


def parameters(spec: DecoderSpec | HeadSpec) -> int:
    """Weights of the model, a tied head counted once; norms and biases, a thousandth of the whole, left out."""
    gathered, floating, linear = _extent(spec)
    layer = _layer(spec)
    return linear + floating + (0 if layer is not None and layer.tied_head else gathered)


def engine_bytes(spec: DecoderSpec | HeadSpec, precision: Precision, *, width: int, positions: int, block: int = BLOCK) -> int:
    """Size of an engine: its weights, which are nearly all of it.

    Args:
        width: Bytes of an activation: of what is not quantised, and of scales.
        positions: Rows of the two rotation tables.
        block: Weights that share a scale where they are integers.
    """
    gathered, floating, linear = _extent(spec)
    layer = _layer(spec)
    tables = positions * layer.head_dim * width if layer else 0
    if precision in ("int8", "int4"):
        # A quantised head shares nothing with the embedding that is gathered from, tied or not.
        bits = 8 if precision == "int8" else 4
        return (gathered + floating) * width + linear * bits // 8 + linear // block * width + tables
    return parameters(spec) * width + tables


def _extent(spec: DecoderSpec | HeadSpec) -> tuple[int, int, int]:
    """Weights that are gathered from, those of routers, which are never quantised, and those of linear layers, the LM head among them."""
    shapes = role_shapes(spec) if isinstance(spec, DecoderSpec) else head_shapes(spec)
    sizes = {role: math.prod(shape) for role, shape in shapes.items() if len(shape) == 2}
    gathered = sizes.pop("embedding", 0)
    floating = sum(size for role, size in sizes.items() if role.endswith(".router"))
    return gathered, floating, sum(sizes.values()) - floating


def _layer(spec: DecoderSpec | HeadSpec) -> DecoderSpec | None:
    """What has the attention, if there is any."""
    return spec if isinstance(spec, DecoderSpec) else spec.layer if isinstance(spec, LayerHead) else None


def _cache_width(spec: DecoderSpec | HeadSpec) -> int:
    """Numbers that one token leaves in the cache: keys and values of all layers."""
    layer = _layer(spec)
    return 2 * layer.num_layers * layer.num_kv_heads * layer.head_dim if layer else 0


def _experts(moe: MoeSpec, max_step: int) -> dict[str, Any]:
    """What a mixture of experts makes dearer: how many of a layer's experts a pass of one sequence reads, by its tokens."""
    touched = {str(tokens): round(moe.touched(tokens), 2) for tokens in sorted({1, 2, max_step})}
    return {"experts": moe.experts, "experts_per_token": moe.experts_per_token, "touched_by_tokens": touched}


def _digest(recipe: Recipe, models: tuple[ModelFacts | HeadFacts, ...], tools: ToolFacts) -> str | None:
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
