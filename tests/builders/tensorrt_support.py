"""What the tests of the TensorRT compiler share: a recipe, a tiny graph, and the compiler as it is on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
from decoder_support import RandomWeights, tiny_spec

from specbuild.builders.compilers.base import CompiledEngine, CompileJob
from specbuild.builders.compilers.tensorrt import TensorRTCompiler
from specbuild.builders.decoder_spec import DecoderSpec, Weights
from specbuild.builders.network.decoder import decoder
from specbuild.recipe import Precision, Recipe

RTX = TensorRTCompiler("tensorrt-rtx", gpu=lambda: None)


def recipe(precision: str = "float16", *, backend: str = "tensorrt-rtx", max_seq_len: int = 120, **options: Any) -> Recipe:
    given = {"compute_capabilities": ["sm89"], "max_prefill_len": 64} | options
    target = {"precision": precision, "max_seq_len": max_seq_len, "max_batch_size": 4}
    draft = {"draft": {"precision": "int4"}}
    data = {"name": "tiny", "checkpoint": "none", "backend": backend, "target": target, "speculation": draft, "tensorrt": given}
    return Recipe.from_mapping(data, origin="test")


def graph(spec: DecoderSpec, weights: Weights, job: CompileJob) -> ir.Model:
    shape = RTX.shape(job)
    return decoder(spec, weights, capacity=shape.graph_capacity, positions=shape.capacity)


def compile_tiny(folder: Path, spoil: Callable[[ir.Model], None] = lambda model: None, precision: Precision = "float16") -> CompiledEngine:
    spec, job = tiny_spec(num_layers=1), CompileJob.of(recipe(precision), "target")
    model = graph(spec, RandomWeights(spec), job)
    spoil(model)
    return RTX.compile(model, job, folder)


def only(model: ir.Model, op_type: str, name: str = "") -> ir.Node:
    return next(node for node in model.graph if node.op_type == op_type and (node.name or "").startswith(name))
