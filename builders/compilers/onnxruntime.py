"""ONNX Runtime on the CPU: the graph itself, with its weights beside it, is the engine."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import onnx_ir as ir
import onnxruntime

from specbuild.errors import BuildError
from specbuild.recipe import Backend, HeadRole, Precision, Recipe

from ..passes.quantize import BLOCK, QuantizeWeights
from ..passes.share_head import ShareHead
from .base import CompiledEngine, CompileJob, EngineShape, check_precisions, round_up

_FILE = "model.onnx"
_MAX_PREFILL = 512
# Cache views grow in steps of this many positions, so a capacity that is a multiple of it is reached without a last odd view.
_VIEW_STEP = 64
# The 8-bit kernel is a fifth to a third faster in blocks of 128 than of 32. From 128 on (4 bits: from 64) it takes rows by twos, and
# the last of an odd number of rows has other bits: a row's bits are the same in every pass only if no pass has an odd number. The price
# is a mean KL from float32 of 0.013 nats instead of 0.004 (SmolLM2-135M; int4: 0.40).
_WIDE_BLOCK = 128


class OnnxRuntimeCompiler:
    """Quantise, save, and let ONNX Runtime say whether it takes the result.

    What is saved is the standard graph, not the optimised one: optimising at load takes a quarter of a second for SmolLM2-135M,
    and its outcome depends on the CPU.
    """

    name: Backend = "onnxruntime"
    flavour = "onnxruntime"
    precisions: tuple[Precision, ...] = ("float32", "int8", "int4")

    def version(self) -> str:
        """Version of the onnxruntime package."""
        return str(onnxruntime.__version__)

    def check(self, recipe: Recipe) -> None:
        """Raises UnsupportedError for a precision that is not built."""
        check_precisions(self, recipe)

    def shape(self, job: CompileJob) -> EngineShape:
        """A view that may have any length up to the capacity, which has room for one padded step past the longest sequence."""
        step, wide = job.max_draft_len + 1, _in_wide_blocks(job)
        multiple = 2 if wide else 1
        return EngineShape(
            static_view=False,
            capacity=round_up(job.max_seq_len + round_up(step, multiple), _VIEW_STEP),
            max_step=step,
            row_multiple=multiple,
            weight_block=_WIDE_BLOCK if wide else BLOCK,
            max_prefill=_MAX_PREFILL,
            kv_dtype="float32",
        )

    def compile(self, model: ir.Model, job: CompileJob, folder: Path) -> CompiledEngine:
        """``model.onnx`` and ``model.onnx.data`` in ``folder``.

        Raises:
            BuildError: the files cannot be written, or ONNX Runtime does not take them.
        """
        if job.precision == "int8" or job.precision == "int4":
            QuantizeWeights(job.precision, block=self.shape(job).weight_block)(model)
        else:
            assert job.precision == "float32", f"check() lets no {job.precision} pass"
            ShareHead()(model)
        signature = ({value.name for value in model.graph.inputs}, {value.name for value in model.graph.outputs})
        path = folder / _FILE
        try:
            ir.save(model, path, external_data=f"{_FILE}.data")
        except OSError as error:
            raise BuildError(f"{path}: cannot be written ({error.strerror or error}); free some space or choose another store") from error
        self._verify(path, signature)
        return CompiledEngine(_FILE, self.shape(job))

    def _verify(self, path: Path, signature: tuple[set[str | None], set[str | None]]) -> None:
        """Load the engine once with the runtime's options, but for packing weights for the CPU: that would copy them all."""
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # every error of this library is a direct subclass of Exception
            raise BuildError(f"{path}: onnxruntime {self.version()} refuses the engine: {error}") from error
        seen = ({value.name for value in session.get_inputs()}, {value.name for value in session.get_outputs()})
        assert seen == signature, f"signature changed on loading: {seen} instead of {signature}"


def _in_wide_blocks(job: CompileJob) -> bool:
    """int8 decoders. Heads, which take one row at a time and are small, lose by it; four bits would lose too much of the weights."""
    return job.precision == "int8" and job.role not in get_args(HeadRole)


def create(backend: Backend) -> OnnxRuntimeCompiler:
    """The compiler of the one backend of this module."""
    assert backend == "onnxruntime", backend
    return OnnxRuntimeCompiler()
