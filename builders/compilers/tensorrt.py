"""TensorRT, mainline and RTX: the opset-24 graph becomes a plan with a static cache view and two profiles.

RTX compiles ahead of time for the compute capabilities of the recipe and needs no GPU for it; mainline compiles for the
GPU present. Precision lives in the graph: networks are strongly typed.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir

from specbuild.errors import BuildError, EnvironmentLacksError, UnsupportedError
from specbuild.recipe import Backend, Precision, Recipe, TensorRTSection

from ..passes.cast import CastFloats
from ..passes.dense_experts import DenseExperts
from ..passes.positive_scales import PositiveScales
from ..passes.quantize import QuantizeWeights
from ..passes.share_head import ShareHead
from ..passes.tensorrt import MarkForTensorRT
from ..store import Store
from .base import CompiledEngine, CompileJob, EngineShape, check_precisions, round_up
from .tensorrt_guards import check_aliases, check_graph, check_network, check_unused
from .tensorrt_library import Messages, TensorRTBackend, TensorRTLibrary, load, present_capability
from .tensorrt_profiles import add_to, profiles

RTX_CAPABILITIES = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
DATA_CENTRE = {"sm90": "Hopper", "sm100": "data-centre Blackwell", "sm103": "data-centre Blackwell"}
CAPACITY_STEP = 64

NEED_GPU = ("refit", "timing_cache")


def create(backend: Backend) -> TensorRTCompiler:
    """The compiler of ``tensorrt-rtx`` or ``tensorrt``."""
    return TensorRTCompiler(cast(TensorRTBackend, backend))


@dataclass(frozen=True)
class TensorRTCompiler:
    """See ``base.Compiler``."""

    name: TensorRTBackend
    precisions: tuple[Precision, ...] = ("float16", "bfloat16", "int8", "int4", "float32")
    gpu: Callable[[], str | None] = present_capability
    """Compute capability of the GPU present, or None."""

    @property
    def flavour(self) -> str:
        return self.name.replace("-", "_")

    def version(self) -> str:
        return load(self.name).version

    def check(self, recipe: Recipe) -> None:
        check_precisions(self, recipe)
        self._check_options(recipe.tensorrt)
        load(self.name)
        self._check_gpu(recipe.tensorrt)

    def shape(self, job: CompileJob) -> EngineShape:
        max_step = job.max_draft_len + 1
        max_prefill = max(min(job.tensorrt.max_prefill_len, job.max_seq_len), max_step)
        return EngineShape(
            static_view=True,
            capacity=round_up(job.max_seq_len + max_step, CAPACITY_STEP),  # room for a padded step past the longest sequence
            max_step=max_step,
            max_prefill=max_prefill,
            kv_dtype=job.precision if job.precision in ("float32", "bfloat16") else "float16",
            compute_capabilities=tuple(dict.fromkeys(job.tensorrt.compute_capabilities)),
        )

    def compile(self, model: ir.Model, job: CompileJob, folder: Path) -> CompiledEngine:
        library, shape, present = load(self.name), self.shape(job), self.gpu()
        if not shape.compute_capabilities and present:
            shape = dataclasses.replace(shape, compute_capabilities=(present,))
        prepare(model, job.precision)
        check_graph(model)
        build = _Build(library, Messages(), shape, job)
        with tempfile.TemporaryDirectory(prefix="graph-", dir=folder) as scratch:
            graph = Path(scratch) / "model.onnx"
            try:
                ir.save(model, graph, external_data="model.onnx.data")
                plan = build.plan(graph, model)
                file = folder / f"{job.role}.engine"
                file.write_bytes(plan)  # straight from TensorRT's memory
            except OSError as error:
                raise BuildError(f"{folder}: the {job.role} engine cannot be written ({error}); free some space") from error
        if present in shape.compute_capabilities:
            build.check_plan(plan)
        return CompiledEngine(file.name, shape)

    def _check_options(self, options: TensorRTSection) -> None:
        if options.strip_weights:
            raise UnsupportedError("tensorrt.strip_weights: a bundle is self-contained, a plan without weights cannot run; set it to false")
        if options.version_compatible:
            raise UnsupportedError("tensorrt.version_compatible: a bundle runs with the TensorRT version that built it; set it to false")
        if self.name == "tensorrt-rtx":
            if options.timing_cache:
                raise UnsupportedError("tensorrt.timing_cache: TensorRT-RTX times no kernels when it builds; set it to false")
            _check_rtx_capabilities(options.compute_capabilities)

    def _check_gpu(self, options: TensorRTSection) -> None:
        present, wanted = self.gpu(), options.compute_capabilities
        if present is None:
            for key in NEED_GPU:
                if getattr(options, key):
                    raise EnvironmentLacksError(f"tensorrt.{key}: a build with it needs a GPU and this machine has none; set it to false")
            if self.name == "tensorrt":
                raise EnvironmentLacksError(
                    "backend 'tensorrt' compiles for the GPU present and this machine has none; build on one or use backend tensorrt-rtx"
                )
            if not wanted:
                raise EnvironmentLacksError(
                    "tensorrt.compute_capabilities: empty means the GPU present and this machine has none; name them, such as [sm89, sm120]"
                )
        elif self.name == "tensorrt" and wanted not in ((), (present,)):
            raise EnvironmentLacksError(
                f"tensorrt.compute_capabilities: {', '.join(wanted)} asked for and mainline TensorRT compiles for the GPU present alone, "
                f"which is {present}; leave it empty or build on the other"
            )
        elif self.name == "tensorrt-rtx" and not wanted:
            _check_rtx_capabilities((present,))


@dataclass(frozen=True)
class _Build:
    """One run of TensorRT's builder."""

    library: TensorRTLibrary
    messages: Messages
    shape: EngineShape
    job: CompileJob

    def plan(self, graph: Path, model: ir.Model) -> Any:
        """The plan (a buffer) of the graph in ``graph``, which ``model`` describes."""
        trt = self.library.trt
        logger = self.messages.logger(trt)
        builder = trt.Builder(logger)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)  # owns the weights: it must outlive the build
        if not parser.parse_from_file(str(graph)):
            problems = [parser.get_error(index) for index in range(parser.num_errors)]
            what = "; ".join(f"{problem.node_operator()} {problem.node_name()!r}: {problem.desc()}" for problem in problems)
            raise BuildError(f"{self._who} cannot parse the {self.job.role} graph: {what or self.messages.quote()}")
        check_network(trt, network, model)
        config = self._config(builder, network)
        plan = builder.build_serialized_network(network, config)
        check_unused(self.messages.unused_inputs)
        if plan is None:
            raise BuildError(f"{self._who} cannot build the {self.job.role} engine: {self.messages.quote()}")
        self._keep_timings(config)
        return plan

    def check_plan(self, plan: Any) -> None:
        """Load the plan on the GPU present and check that its cache is updated in place."""
        trt = self.library.trt
        runtime = trt.Runtime(self.messages.logger(trt))
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise BuildError(f"{self._who} does not load the plan it has just built: {self.messages.quote()}")
        check_aliases(engine)

    @property
    def _who(self) -> str:
        return f"{self.library.flavour} {self.library.version}"

    def _config(self, builder: Any, network: Any) -> Any:
        trt, options, shape = self.library.trt, self.job.tensorrt, self.shape
        config = builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib << 20)
        config.clear_flag(trt.BuilderFlag.TF32)  # float32 means float32
        if options.refit:
            config.set_flag(trt.BuilderFlag.REFIT)
        if self.library.flavour == "tensorrt_rtx":
            config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)  # RTX captures no CUDA graph of a plan that allocates
            config.num_compute_capabilities = len(shape.compute_capabilities)
            for index, name in enumerate(shape.compute_capabilities):
                config.set_compute_capability(getattr(trt.ComputeCapability, name.upper()), index)
        if options.timing_cache:
            known = self._timings.read_bytes() if self._timings.is_file() else b""
            if not config.set_timing_cache(config.create_timing_cache(known), ignore_mismatch=False):  # made by another driver
                config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
        wanted = profiles(max_batch_size=self.job.max_batch_size, max_step=shape.max_step, max_prefill=shape.max_prefill)
        add_to(config, builder, network, wanted)
        return config

    @property
    def _timings(self) -> Path:
        """Timings hold for one version and one GPU generation."""
        return Store.default().home / ".timings" / f"{self.library.flavour}-{self.library.version}-{self.shape.compute_capabilities[0]}"

    def _keep_timings(self, config: Any) -> None:
        if self.job.tensorrt.timing_cache:
            self._timings.parent.mkdir(parents=True, exist_ok=True)
            self._timings.write_bytes(config.get_timing_cache().serialize())


def prepare(model: ir.Model, precision: Precision) -> None:
    """Give the float32 graph its precision and TensorRT's marks, in place: weight-only int8 and int4 compute in float16."""
    DenseExperts()(model)
    if precision == "int8" or precision == "int4":
        QuantizeWeights(precision, signed_scale=False)(model)
    else:
        ShareHead()(model)
    if precision != "float32":
        CastFloats("bfloat16" if precision == "bfloat16" else "float16")(model)
    PositiveScales()(model)
    MarkForTensorRT()(model)


def _check_rtx_capabilities(capabilities: tuple[str, ...]) -> None:
    for name in capabilities:
        if name in DATA_CENTRE:
            raise UnsupportedError(f"tensorrt.compute_capabilities: {name}: RTX does not target {DATA_CENTRE[name]}: use backend tensorrt")
        if name not in RTX_CAPABILITIES:
            raise UnsupportedError(f"tensorrt.compute_capabilities: {name}: RTX targets {', '.join(RTX_CAPABILITIES)}; choose among them")
