"""What to build and how to speculate with it: the recipe, frozen and checked key by key.

Defaults live in the fields below and nowhere else; the CLI, the JSON schema and the documentation read them from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, model_validator

from specbuild.errors import RecipeError, close_match

Precision = Literal["float32", "float16", "bfloat16", "int8", "int4"]
Backend = Literal["onnxruntime", "tensorrt-rtx", "tensorrt"]
Method = Literal["off", "ngram", "suffix", "draft_model", "mtp", "eagle3", "medusa", "early_exit", "cascade", "hybrid", "merged"]
Retrieval = Literal["ngram", "suffix"]
ChainRule = Literal["block", "token"]
"""Rules that do not judge trees."""
Verification = Literal["coupled", ChainRule, "traversal", "recursive", "target_only"]
Lossy = Literal["typical"]
DraftVocabulary = Literal["same", "own"]
DraftName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
HeadRole = Literal["mtp", "eagle3", "medusa"]
TrainedRole = Literal[HeadRole, "early_exit"]
"""What can be trained: draft heads, and an adapter for the target's first layers."""
LOWER = "target.lower"
"""The role of the target's first layers, where it is compiled in two for early exit."""
ComputeCapability = Annotated[str, Field(pattern=r"^sm\d{2,3}$")]


FIRST = frozenset({"ngram", "suffix", "draft_model"})
"""Methods that a cascade may begin with."""
MERGEABLE = frozenset({"ngram", "suffix", "mtp", "eagle3", "medusa", "early_exit"})
"""Methods that drafts may be merged of, beside draft models."""


def draft_role(name: str) -> str:
    """The role of the draft model that a cascade calls ``name``."""
    return name if name == "draft" else f"draft.{name}"


def section_key(role: str) -> str:
    """Where in a recipe the section of an engine's role is, for messages."""
    if role == "target":
        return role
    if role == LOWER:
        return "speculation.early_exit"
    return f"speculation.heads.{role}" if role in get_args(HeadRole) else "speculation." + role.replace("draft.", "drafts.", 1)


class Section(BaseModel):
    """A frozen part of a recipe that refuses unknown keys, naming the closest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_unknown(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Self:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}.{close_match(str(key), cls.model_fields)}")
        built: Self = handler(data)
        return built


class TargetSection(Section):
    """The model whose output is reproduced."""

    precision: Precision = Field(default="int8", description="Weights of the target engine.")
    max_batch_size: int = Field(default=8, ge=1, le=1024, description="Sequences that one pass may hold.")
    max_seq_len: int = Field(default=2048, ge=16, description="Tokens of a sequence, prompt and output together.")
    config: dict[str, Any] | None = Field(
        default=None, description="Hugging Face config keys of the checkpoint: lets a plan be made without it; a build checks them."
    )


class DraftSection(Section):
    """The model that proposes tokens."""

    checkpoint: str | None = Field(default=None, description="Where the draft comes from; empty: the target's own checkpoint.")
    precision: Precision = Field(default="int4", description="Weights of the draft engine.")
    config: dict[str, Any] | None = Field(default=None, description="As target.config, for the draft's checkpoint.")
    vocabulary: DraftVocabulary = Field(
        default="same",
        description="same: the target's. own: another; drafts are translated by way of their text, the model's likeliest tokens only.",
    )


class HeadSection(Section):
    """A draft head: a few layers, trained on the target's hidden states, that propose tokens."""

    checkpoint: str | None = Field(
        default=None, description="Where the head comes from; empty: the target's own checkpoint, which may bring MTP modules along."
    )
    precision: Precision = Field(default="int8", description="Weights of the head's engine.")


class HeadsSection(Section):
    """Draft heads to build beside the target, each with its own engine."""

    mtp: HeadSection | None = Field(default=None, description="One more decoder layer on the last hidden state (DeepSeek-V3's MTP).")
    eagle3: HeadSection | None = Field(default=None, description="One layer on three hidden states of the target (EAGLE-3).")
    medusa: HeadSection | None = Field(default=None, description="A head for each of the next tokens, all in one pass (Medusa-1).")

    def present(self) -> dict[HeadRole, HeadSection]:
        """Role → section of the heads that there are, in the order of the fields."""
        roles: tuple[HeadRole, ...] = get_args(HeadRole)
        return {role: section for role in roles if (section := getattr(self, role)) is not None}


class EarlyExitSection(Section):
    """The target cut in two: its first layers, followed by its own norm and head, draft for the whole."""

    layers: int = Field(ge=1, description="Layers that draft; scripts/early_exit.py measures how many pay, if any.")
    adapter: str | None = Field(
        default=None, description="Folder of an adapter trained for an exit there (specbuild train early_exit); empty: norm and head alone."
    )


class SpeculationSection(Section):
    """How tokens are proposed and how proposals are verified."""

    method: Method = Field(default="ngram", description="Proposer used when a request does not say otherwise.")
    draft_len: int = Field(default=4, ge=1, description="Draft tokens a round, unless a request says otherwise.")
    max_draft_len: int = Field(default=7, ge=1, le=63, description="The most draft tokens that the engines can verify at once.")
    tree_budget: int = Field(
        default=0, ge=0, description="Tokens of a draft's whole tree, at most, where the target's bits allow trees; 0: chains of draft_len."
    )
    verification: Verification = Field(default="coupled", description="Lossless rule of acceptance.")
    lossy: Lossy | None = Field(
        default=None, description="A rule in its place that changes the law of the output; results are labelled with it. Empty: none."
    )
    ngram_max: int = Field(default=3, ge=1, le=16, description="Longest suffix that prompt lookup matches, in tokens.")
    ngram_min: int = Field(default=1, ge=1, le=16, description="Shortest suffix that prompt lookup matches, in tokens.")
    suffix_history: int = Field(default=100_000, ge=0, description="Tokens of finished outputs that suffix drafts from; 0: none.")
    draft: DraftSection | None = Field(default=None, description="Draft model to build beside the target; empty: none.")
    drafts: dict[DraftName, DraftSection] = Field(default_factory=dict, description="More draft models, by name, for a cascade.")
    cascade: tuple[str, ...] = Field(
        default=("ngram", "draft"), min_length=2, description="A method, then models from the smallest up; each drafts for the next."
    )
    hybrid_retrieval: Retrieval = Field(default="ngram", description="What hybrid drafts by where its match is long enough.")
    hybrid_min_match: int = Field(default=1, ge=1, description="Tokens that the match must have, at least.")
    hybrid_model: Method = Field(default="draft_model", description="What hybrid drafts by elsewhere.")
    merged: tuple[str, ...] = Field(
        default=("ngram", "draft"),
        min_length=2,
        description="Methods and models whose drafts are merged into a tree; where it is to be a chain, the first that has one.",
    )
    heads: HeadsSection = Field(default_factory=HeadsSection, description="Draft heads to build beside the target.")
    early_exit: EarlyExitSection | None = Field(default=None, description="Build the target so that its first layers draft; empty: whole.")

    @property
    def models(self) -> dict[str, DraftSection]:
        """Role → section of each draft model: ``draft``, then ``draft.NAME`` for those with a name."""
        first = {} if self.draft is None else {"draft": self.draft}
        return first | {draft_role(name): section for name, section in self.drafts.items()}

    def roles(self, method: str) -> tuple[str, ...]:
        """Roles of the engines that draft for ``method``, the largest last; none for one that runs no model."""
        if method == "hybrid":
            return self.roles(self.hybrid_model)
        if method == "cascade":
            first, *others = self.cascade
            return (*(self.roles(first) if first in FIRST else (draft_role(first),)), *(draft_role(name) for name in others))
        if method == "merged":
            return tuple(role for name in self.merged for role in (self.roles(name) if name in MERGEABLE else (draft_role(name),)))
        if method == "early_exit":
            return (LOWER,)
        return (method,) if method in get_args(HeadRole) else ("draft",) if method == "draft_model" else ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_compositions()
        present = {*self.models, *self.heads.present(), *(() if self.early_exit is None else (LOWER,))}
        missing = next((role for role in self.roles(self.method) if role not in present), None)
        if missing == "draft":
            raise ValueError(f"method {self.method!r} needs a 'draft' section; add `draft: {{}}` for the target's own int4 build")
        if missing == LOWER:
            raise ValueError(
                f"method {self.method!r} needs an 'early_exit' section; add `early_exit: {{layers: N}}`, N layers to draft with"
            )
        if missing in get_args(HeadRole):
            raise ValueError(f"method {self.method!r} needs a head; set heads.{missing}.checkpoint to its folder")
        if missing is not None:
            name = missing.removeprefix("draft.")
            raise ValueError(f"method {self.method!r} needs a draft model {name!r}; add it to `drafts`")
        if self.draft_len > self.max_draft_len:
            raise ValueError(
                f"draft_len {self.draft_len} is above max_draft_len {self.max_draft_len}; raise the latter or lower the former"
            )
        if self.tree_budget > self.max_draft_len:
            raise ValueError(
                f"tree_budget {self.tree_budget} is above max_draft_len {self.max_draft_len}; raise the latter or lower the former"
            )
        if self.tree_budget and self.lossy is None and self.verification in get_args(ChainRule):
            raise ValueError(
                f"tree_budget is {self.tree_budget}, but verification {self.verification!r} judges chains alone; "
                "set the former to 0 or use another rule"
            )
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min {self.ngram_min} is above ngram_max {self.ngram_max}; swap or lower it")
        return self

    def _check_compositions(self) -> None:
        if taken := sorted({"draft", *FIRST, *MERGEABLE} & self.drafts.keys()):
            raise ValueError(f"drafts has the name {', '.join(taken)}, which means another draft; choose another name")
        for place, name in enumerate(self.cascade):
            possible = {"draft", *self.drafts, *(FIRST if place == 0 else ())}
            if name not in possible:
                raise ValueError(f"cascade[{place}] is {name!r}, but must be one of: {', '.join(sorted(possible))}")
            section = self.models.get(draft_role(name)) if place else None
            if section is not None and section.vocabulary == "own" and self.cascade[:place] != ("ngram",):
                raise ValueError(
                    f"cascade[{place}] is {name!r}, whose vocabulary is its own: nothing but ngram can draft for it; put it first"
                )
        for place, name in enumerate(self.merged):
            possible = {"draft", *self.drafts, *MERGEABLE} - {*self.merged[:place]}
            if name not in possible:
                raise ValueError(f"merged[{place}] is {name!r}, but must be one of: {', '.join(sorted(possible))}")
        if self.hybrid_model in ("off", "hybrid", *get_args(Retrieval)):
            raise ValueError(f"hybrid_model is {self.hybrid_model!r}, but must be a method that runs a model, such as draft_model")


class TensorRTSection(Section):
    """What only the TensorRT compilers read."""

    compute_capabilities: tuple[ComputeCapability, ...] = Field(
        default=(), description="GPU generations a plan is compiled for, such as sm89; empty: the GPU present (mainline only)."
    )
    max_prefill_len: int = Field(default=512, ge=1, description="New tokens of the prefill profile; longer prompts go in pieces.")
    workspace_mib: int = Field(default=2048, ge=1, description="Scratch memory the builder may plan with, MiB.")
    timing_cache: bool = Field(default=False, description="Keep kernel timings between builds (needs a GPU).")
    refit: bool = Field(default=False, description="Leave weights replaceable in the plan (needs a GPU to build).")
    strip_weights: bool = Field(default=False, description="Leave weights out of the plan (refused: a bundle is self-contained).")
    version_compatible: bool = Field(
        default=False, description="Let later TensorRT versions load the plan (refused: a bundle runs with the version that built it)."
    )


class Recipe(Section):
    """One model pair and its use."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name of the bundle: lower case, digits, '.', '_', '-'.")
    checkpoint: str = Field(min_length=1, description="A folder, a .gguf file, package:NAME or hf:ORG/NAME.")
    backend: Backend = Field(default="onnxruntime", description="Compiler and runtime of the engines.")
    target: TargetSection = Field(default_factory=TargetSection)
    speculation: SpeculationSection = Field(default_factory=SpeculationSection)
    tensorrt: TensorRTSection = Field(default_factory=TensorRTSection)

    @classmethod
    def from_mapping(cls, data: dict[str, Any], *, origin: str) -> Recipe:
        """The recipe in ``data``; ``origin`` (a file or a flag) is named when it is refused.

        Raises:
            RecipeError: an unknown key, a missing one or an impossible value.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise RecipeError(f"{origin}: {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    what = problem["msg"].removeprefix("Value error, ")
    seen = "" if problem["type"] in ("value_error", "missing") else f" (seen: {problem['input']!r})"
    return f"{where}: {what}{seen}" if where else f"{what}{seen}"
