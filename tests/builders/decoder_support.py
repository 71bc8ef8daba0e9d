"""What the tests of networks share: random weights, a compiled engine run by plain ``session.run``, and transformers' side."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from specbuild.builders.compilers.base import CompiledEngine, CompileJob, compiler
from specbuild.builders.decoder_spec import DecoderSpec, RopeSpec, Weights
from specbuild.builders.network.decoder import decoder
from specbuild.builders.weights import role_shapes
from specbuild.recipe import Precision, Recipe

Logits = NDArray[np.float32]


def tiny_spec(**changes: Any) -> DecoderSpec:
    """A decoder of two layers whose widths are multiples of 32: it can be quantised."""
    given: dict[str, Any] = {
        "family": "llama",
        "vocab_size": 160,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "norm_eps": 1e-5,
        "rope": RopeSpec(tuple(10000.0 ** (-i / 8) for i in range(8))),
        "max_position": 512,
        "tied_head": True,
    }
    return DecoderSpec(**(given | changes))


@dataclass
class RandomWeights:
    """Normal weights of a size that keeps activations near one; what is read is noted."""

    spec: DecoderSpec
    seed: int = 0
    read_roles: list[str] = field(default_factory=list)

    def read(self, role: str) -> NDArray[np.float32]:
        self.read_roles.append(role)
        shapes = role_shapes(self.spec)
        source = "embedding" if role == "head" and self.spec.tied_head else role
        random = np.random.default_rng([self.seed, list(shapes).index(source)])
        shape = shapes[source]
        normal = random.standard_normal(shape, dtype=np.float32)
        scaled: NDArray[np.float32] = 1 + 0.1 * normal if len(shape) == 1 else normal / np.float32(np.sqrt(shape[1]))
        return scaled


def recipe(**sections: Any) -> Recipe:
    return Recipe.from_mapping({"name": "tiny", "checkpoint": "none"} | sections, origin="test")


def job(precision: Precision, max_seq_len: int = 256) -> CompileJob:
    target = {"precision": precision, "max_batch_size": 8, "max_seq_len": max_seq_len}
    return CompileJob.of(recipe(target=target, speculation={"max_draft_len": 11}), "target")


def compile_cpu(spec: DecoderSpec, weights: Weights, precision: Precision, folder: Path, max_seq_len: int = 256) -> CompiledEngine:
    onnx_compiler, wanted = compiler("onnxruntime"), job(precision, max_seq_len)
    shape = onnx_compiler.shape(wanted)
    model = decoder(spec, weights, capacity=shape.graph_capacity, positions=shape.capacity)
    return onnx_compiler.compile(model, wanted, folder)


class Sequences:
    """B sequences of one length in an engine, with their caches. B·S and B·R of a pass are padded to multiples of ``multiple``."""

    def __init__(
        self, spec: DecoderSpec, session: onnxruntime.InferenceSession, batch: int = 1, view: int = 128, *, multiple: int = 1
    ) -> None:
        self.spec, self.session, self.view = spec, session, view
        self.multiple = multiple // gcd(multiple, batch)
        shape = (batch, spec.num_kv_heads, view, spec.head_dim)
        # Rubbish, not zeros: what was never written must never count.
        self.cache = {
            f"past_{kind}.{layer}": np.full(shape, 1e3, np.float32) for layer in range(spec.num_layers) for kind in ("key", "value")
        }

    def step(self, tokens: NDArray[np.int64], start: int | list[int], rows: list[int] | None = None) -> Logits:
        """Logits [B,R,V] of tokens [B,S] written from position ``start`` (one for all, or one a sequence) on; R is S unless given."""
        batch, given = tokens.shape
        tokens = np.pad(tokens, ((0, 0), (0, -given % self.multiple)))
        length, wanted = tokens.shape[1], list(range(given)) if rows is None else rows
        first = np.broadcast_to(np.array(start, np.int64), (batch,))
        position = first[:, None] + np.arange(length)
        columns = np.arange(self.view)
        mask = columns <= position[..., None]
        if self.spec.sliding_window is not None:
            mask &= columns > position[..., None] - self.spec.sliding_window
        outputs = self.session.run(
            None,
            {
                "input_ids": tokens,
                "position_ids": position,
                "write_index": np.ascontiguousarray(first),
                "attention_mask": mask[:, None],
                "logit_rows": np.tile(np.array(wanted + [0] * (-len(wanted) % self.multiple), np.int64), (batch, 1)),
                **self.cache,
            },
        )
        names = [output.name for output in self.session.get_outputs()]
        for name, value in zip(names, outputs, strict=True):
            if name != "logits":
                self.cache[f"past_{name}"] = value
        logits: Logits = outputs[names.index("logits")][:, : len(wanted)]
        return logits


def open_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
