"""From a recipe to a plan that may be followed: checkpoints opened, the pair checked, the compiler asked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import specbuild
from specbuild.errors import EnvironmentLacksError
from specbuild.recipe import Recipe

from .architectures import family
from .checkpoint import Checkpoint, open_checkpoint
from .compilers import base
from .compilers.base import CompileJob, Compiler, Role, sections
from .facts import HeadFacts, ModelFacts, facts_from_config, facts_of, head_facts, parts
from .head_preflight import check_head
from .heads.weights import HeadWeights
from .plan import BuildPlan, ToolFacts, plan
from .preflight import preflight
from .weights import CheckpointWeights


@dataclass(frozen=True)
class Preparation:
    """All that a build needs."""

    plan: BuildPlan
    compiler: Compiler
    models: Mapping[Role, ModelFacts]
    checkpoints: Mapping[Role, Checkpoint]
    heads: Mapping[Role, HeadFacts]
    weights: Mapping[Role, CheckpointWeights | HeadWeights]

    def facts(self, role: Role) -> ModelFacts | HeadFacts:
        """Of any engine's model; of a part the part's own."""
        made = {part.role: part for part in parts(self.plan.recipe, tuple(self.models.values()))}
        return made[role] if role in made else self.heads[role]


def prepare(recipe: Recipe) -> Preparation:
    """Open the checkpoints and check everything that can be checked before compiling.

    Raises:
        CheckpointError, UnsupportedError, PreflightError, EnvironmentLacksError: what stands in the way, and what mends it.
    """
    compiler = base.compiler(recipe.backend)
    compiler.check(recipe)
    checkpoints: dict[Role, Checkpoint] = {}
    models: dict[Role, ModelFacts] = {}
    for role, (source, _) in sources(recipe).items():
        same = next((known for known in models.values() if known.source == source), None)
        checkpoints[role] = checkpoints[same.role] if same else open_checkpoint(source)
        models[role] = facts_of(role, source, checkpoints[role])
    preflight(recipe, tuple(models.values()))
    heads = _heads(recipe, models["target"])
    # Names and shapes of all tensors are compared here: a draft that lacks one is not noticed after hours of compiling a target.
    weights: dict[Role, CheckpointWeights | HeadWeights] = {
        role: CheckpointWeights(checkpoints[role], model.spec, family(model.spec.family)) for role, model in models.items()
    }
    weights |= {part.role: weights["target"] for part in parts(recipe, tuple(models.values())) if part.role not in models}
    for role, head in heads.items():
        weights[role] = HeadWeights(head.files, head.spec, head.layout, head.prefix, weights["target"], head.d2t)
    return Preparation(_plan(recipe, models, heads, compiler, compiler.version()), compiler, models, checkpoints, heads, weights)


def dry_plan(recipe: Recipe) -> BuildPlan:
    """The plan alone. A model whose recipe has a ``config`` section is planned from that: no weights and no network are
    needed, and neither is the compiler's library.

    Raises:
        CheckpointError, UnsupportedError, PreflightError: as ``prepare``.
    """
    compiler = base.compiler(recipe.backend)
    version: str | None = None
    try:
        compiler.check(recipe)
        version = compiler.version()
    except EnvironmentLacksError:
        pass  # the plan says that there is no version; only a build needs one
    models = {
        role: facts_from_config(role, source, config) if config is not None else facts_of(role, source, open_checkpoint(source))
        for role, (source, config) in sources(recipe).items()
    }
    preflight(recipe, tuple(models.values()))
    return _plan(recipe, models, _heads(recipe, models["target"]), compiler, version)


def sources(recipe: Recipe) -> dict[Role, tuple[str, Mapping[str, object] | None]]:
    """Role → (checkpoint, ``config`` section) of each engine, the target first. A draft without a checkpoint is the target's own."""
    found: dict[Role, tuple[str, Mapping[str, object] | None]] = {"target": (recipe.checkpoint, recipe.target.config)}
    for role, draft in recipe.speculation.models.items():
        found[role] = (draft.checkpoint, draft.config) if draft.checkpoint else (recipe.checkpoint, draft.config or recipe.target.config)
    return found


def _heads(recipe: Recipe, target: ModelFacts) -> dict[Role, HeadFacts]:
    """The facts of every draft head of the recipe, each checked against the target."""
    heads: dict[Role, HeadFacts] = {}
    for role, section in recipe.speculation.heads.present().items():
        heads[role] = head_facts(role, section.checkpoint or recipe.checkpoint, target.spec)
        check_head(recipe, target, heads[role])
    return heads


def _plan(
    recipe: Recipe, models: Mapping[Role, ModelFacts], heads: Mapping[Role, HeadFacts], compiler: Compiler, version: str | None
) -> BuildPlan:
    shapes = {role: compiler.shape(CompileJob.of(recipe, role)) for role in sections(recipe)}
    return plan(recipe, tuple(models.values()), tuple(heads.values()), ToolFacts(compiler.flavour, version, shapes, source_digest()))


def source_digest() -> str:
    """Of specbuild's version and the code that builds: a checkout under development never serves engines of yesterday's code."""
    content = hashlib.sha256(specbuild.__version__.encode())
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        content.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return content.hexdigest()
