"""The target as a reader: hidden states of whole texts, by an engine that gives them out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ..compilers import base
from ..compilers.base import CompileJob
from ..decoder_spec import DecoderSpec, Weights
from ..network.decoder import decoder

STEP = 64
"""Texts are padded to multiples of this: few shapes, few allocations."""


class Reader:
    """An engine compiled for this alone, with the target's own precision: a head must learn from the states that it will be given."""

    def __init__(self, spec: DecoderSpec, weights: Weights, job: CompileJob, taps: tuple[int, ...], folder: Path, threads: int) -> None:
        compiler = base.compiler("onnxruntime")
        folder.mkdir(parents=True, exist_ok=True)
        graph = decoder(spec, weights, capacity=None, positions=compiler.shape(job).capacity, taps=taps)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
        file = folder / compiler.compile(graph, job, folder).file
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._cache = (spec.num_layers, spec.num_kv_heads, spec.head_dim)

    def read(self, tokens: Sequence[int] | NDArray[np.int32]) -> NDArray[np.float32]:
        """Hidden states [n, H·taps] of a text, position by position."""
        count = len(tokens)
        length = -(-count // STEP) * STEP
        padded = np.zeros((1, length), np.int64)
        padded[0, :count] = tokens
        layers, kv_heads, width = self._cache
        inputs = {
            "input_ids": padded,
            "position_ids": np.arange(length)[None],
            "write_index": np.zeros(1, np.int64),
            "attention_mask": np.tri(length, dtype=np.bool_)[None, None],
            "logit_rows": np.zeros((1, 1), np.int64),
        }
        empty = np.zeros((1, kv_heads, length, width), np.float32)
        inputs |= {f"past_{kind}.{layer}": empty for layer in range(layers) for kind in ("key", "value")}
        hidden: NDArray[np.float32] = self._session.run(["hidden"], inputs)[0]
        return hidden[0, :count]
