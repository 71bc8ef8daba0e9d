"""A target with taps gives out the hidden states of every token, and is otherwise the target that it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from decoder_support import RandomWeights, open_session, tiny_spec
from numpy.typing import NDArray
from test_parity_families import CASES, reference_model
from tiny_checkpoint import save_tiny

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.decoder_spec import DecoderSpec, Weights
from specbuild.builders.network.decoder import decoder
from specbuild.builders.passes.quantize import QuantizeWeights
from specbuild.builders.weights import CheckpointWeights

TOKENS, VIEW = 24, 32
Floats = NDArray[np.float32]


def tapped(spec: DecoderSpec, weights: Weights, file: Path, taps: tuple[int, ...], *, int8: bool = False) -> None:
    model = decoder(spec, weights, capacity=None, positions=64, taps=taps)
    if int8:
        QuantizeWeights("int8")(model)
    ir.save(model, file)


def outputs(file: Path, spec: DecoderSpec, tokens: NDArray[np.int64], rows: list[int]) -> dict[str, Floats]:
    """What one pass over tokens [S] from an empty cache gives, by name."""
    session, position = open_session(file), np.arange(len(tokens))
    mask = np.arange(VIEW) <= position[:, None]
    if spec.sliding_window is not None:
        mask &= np.arange(VIEW) > position[:, None] - spec.sliding_window
    cache = np.zeros((1, spec.num_kv_heads, VIEW, spec.head_dim), np.float32)
    given = {
        "input_ids": tokens[None],
        "position_ids": position[None],
        "write_index": np.zeros(1, np.int64),
        "attention_mask": mask[None, None],
        "logit_rows": np.array([rows]),
        **{f"past_{kind}.{layer}": cache for layer in range(spec.num_layers) for kind in ("key", "value")},
    }
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, given), strict=True))


def opened(folder: Path) -> tuple[DecoderSpec, CheckpointWeights]:
    checkpoint = open_checkpoint(str(folder))
    spec = decoder_spec(checkpoint.config)
    return spec, CheckpointWeights(checkpoint, spec, family(spec.family))


def hidden_states(model: Any, tokens: NDArray[np.int64]) -> list[Floats]:
    with torch.no_grad():
        states = model(input_ids=torch.from_numpy(tokens[None]), output_hidden_states=True).hidden_states
    return [state[0].numpy() for state in states]


@pytest.mark.parametrize("name", CASES)
def test_taps_are_transformers_hidden_states(name: str, tmp_path: Path) -> None:
    model = reference_model(CASES[name])
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    spec, weights = opened(tmp_path)
    tapped(spec, weights, tmp_path / "model.onnx", tuple(range(spec.num_layers + 1)))
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, TOKENS)
    hidden = outputs(tmp_path / "model.onnx", spec, tokens, [TOKENS - 1])["hidden"]
    expected = hidden_states(model, tokens)
    assert len(expected) == spec.num_layers + 1
    assert np.abs(hidden[0] - np.concatenate(expected, axis=-1)).max() <= 1e-4


def test_taps_of_a_checkpoint_are_transformers_hidden_states(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "checkpoint", num_hidden_layers=3)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    spec, weights = opened(folder)
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, TOKENS)
    tapped(spec, weights, tmp_path / "model.onnx", (1, 3))
    hidden = outputs(tmp_path / "model.onnx", spec, tokens, [0])["hidden"]
    states = hidden_states(model, tokens)
    assert np.abs(hidden[0] - np.concatenate([states[1], states[3]], axis=-1)).max() <= 1e-5


@pytest.mark.parametrize("taps", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("int8", [False, True])
def test_taps_change_no_bit_of_the_rest(taps: tuple[int, ...], int8: bool, tmp_path: Path) -> None:
    spec = tiny_spec()
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, TOKENS)
    tapped(spec, RandomWeights(spec), tmp_path / "plain.onnx", (), int8=int8)
    tapped(spec, RandomWeights(spec), tmp_path / "tapped.onnx", taps, int8=int8)
    plain, with_taps = (outputs(tmp_path / f"{name}.onnx", spec, tokens, [3, TOKENS - 1]) for name in ("plain", "tapped"))
    assert with_taps.pop("hidden").shape == (1, TOKENS, spec.hidden_size * len(taps))
    assert plain.keys() == with_taps.keys()
    assert all(np.array_equal(plain[name], with_taps[name]) for name in plain)


def test_without_taps_the_graph_has_no_node_more() -> None:
    spec = tiny_spec()
    sizes = [len(decoder(spec, RandomWeights(spec), capacity=None, positions=8, taps=taps).graph) for taps in ((), (0, 1), (0, 1, 2))]
    assert sizes == [sizes[0], sizes[0] + 1, sizes[0] + 1], "one concatenation; the final norm moves ahead of the gathering of rows"
