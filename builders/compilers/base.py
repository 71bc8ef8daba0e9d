"""What every compiler is: a graph in, one engine file (and its data) out, and the limits that the engine then has.

A compiler is chosen by its backend's name; its own library is imported only when it has to compile, so that a plan can
be made (``shape``) where the library is missing.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

import onnx_ir as ir

from specbuild.errors import UnsupportedError
from specbuild.recipe import LOWER, Backend, DraftSection, HeadSection, Precision, Recipe, TargetSection, TensorRTSection, section_key

from ..passes.quantize import BLOCK

Role = str
"""``target``, ``target.lower``, ``draft``, ``draft.NAME`` or a head's name: what ``sections`` has."""

# Backend → module beside this one. Each has ``create(backend) -> Compiler``.
BACKENDS: dict[Backend, str] = {"onnxruntime": "onnxruntime", "tensorrt-rtx": "tensorrt", "tensorrt": "tensorrt"}


def sections(recipe: Recipe) -> dict[Role, TargetSection | DraftSection | HeadSection]:
    """Role → its section, for every engine that ``recipe`` asks for, the target first."""
    speculation = recipe.speculation
    found: dict[Role, TargetSection | DraftSection | HeadSection] = {"target": recipe.target, **speculation.models}
    if speculation.early_exit is not None:
        found[LOWER] = recipe.target
    return found | speculation.heads.present()


@dataclass(frozen=True)
class CompileJob:
    """One engine to compile: what of a recipe concerns it."""

    role: Role
    precision: Precision
    max_batch_size: int
    max_seq_len: int
    """Tokens of a sequence, prompt and output together."""
    max_draft_len: int
    """Draft tokens that one pass verifies; the pass has one new token more."""
    tensorrt: TensorRTSection

    @classmethod
    def of(cls, recipe: Recipe, role: Role) -> CompileJob:
        """The job that ``recipe`` sets for the engine of ``role``; drafts and heads share the target's batch and length."""
        return cls(
            role=role,
            precision=sections(recipe)[role].precision,
            max_batch_size=recipe.target.max_batch_size,
            max_seq_len=recipe.target.max_seq_len,
            max_draft_len=recipe.speculation.max_draft_len,
            tensorrt=recipe.tensorrt,
        )


@dataclass(frozen=True)
class EngineShape:
    """The limits that an engine will have, known before it is compiled. Named as in ``specbuild.bundle.EngineEntry``."""

    static_view: bool
    capacity: int
    max_step: int
    max_prefill: int
    kv_dtype: Literal["float32", "float16", "bfloat16"]
    row_multiple: int = 1
    weight_block: int = BLOCK
    """Weights that share a scale where they are integers."""
    compute_capabilities: tuple[str, ...] = ()

    @property
    def graph_capacity(self) -> int | None:
        """``capacity`` for ``network.decoder``: the view's length when it is built into the graph, else None."""
        return self.capacity if self.static_view else None


@dataclass(frozen=True)
class CompiledEngine:
    """A compiled engine on disk."""

    file: str
    """Name of the engine inside the folder it was compiled into; data files lie beside it."""
    shape: EngineShape


class Compiler(Protocol):
    """Turns graphs into engines for one backend."""

    @property
    def name(self) -> Backend:
        """The backend's name."""
        ...

    @property
    def flavour(self) -> str:
        """The library that compiles, such as ``onnxruntime`` or ``tensorrt_rtx``."""
        ...

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """What engines it builds."""
        ...

    def version(self) -> str:
        """Version of the library.

        Raises:
            EnvironmentLacksError: it is not installed.
        """
        ...

    def check(self, recipe: Recipe) -> None:
        """Refuse what cannot be compiled, before any work is done.

        Raises:
            EnvironmentLacksError: the library, a GPU or a right version is missing.
            UnsupportedError: a precision, compute capability or option that this compiler does not build.
        """
        ...

    def shape(self, job: CompileJob) -> EngineShape:
        """The limits of the engine that ``job`` gives. Needs neither the library nor a GPU."""
        ...

    def compile(self, model: ir.Model, job: CompileJob, folder: Path) -> CompiledEngine:
        """Compile the float32 graph ``model`` (which the compiler may change) at the job's precision into ``folder``.

        ``model`` was made with ``capacity=shape(job).graph_capacity`` and ``positions=shape(job).capacity``.

        Raises:
            BuildError: the compiler refused the graph, or the engine cannot be written.
        """
        ...


def compiler(backend: Backend) -> Compiler:
    """The compiler of ``backend``."""
    module = importlib.import_module(f".{BACKENDS[backend]}", __package__)
    return cast(Compiler, module.create(backend))


def check_precisions(compiler: Compiler, recipe: Recipe) -> None:
    """Refuse a precision of the recipe that ``compiler`` does not build.

    Raises:
        UnsupportedError: naming the key, the value and the precisions there are.
    """
    for role, section in sections(recipe).items():
        if section.precision not in compiler.precisions:
            raise UnsupportedError(
                f"{section_key(role)}.precision: backend {compiler.name!r} does not build {section.precision!r}; "
                f"choose one of {', '.join(compiler.precisions)}"
            )


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``value``."""
    return -(-value // multiple) * multiple
