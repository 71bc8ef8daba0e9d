"""GGUF files written by the gguf library and read back: every encoding, config keys, names, truncation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.checkpoints.gguf_file import half_split
from specbuild.builders.weights import CheckpointWeights
from specbuild.errors import CheckpointError, UnsupportedError

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 256, 512, 4, 2, 4
HEAD_DIM = HIDDEN // HEADS
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16", "F32"]
CRAFTED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
"""K-quants: the library reads them but does not write them, so their blocks are random bytes."""


def _matrix(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def _shapes() -> dict[str, tuple[int, ...]]:
    return {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (VOCABULARY, HIDDEN),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (INNER, HIDDEN),
        "blk.0.ffn_up.weight": (INNER, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INNER),
    }


def _write(
    path: Path,
    tensors: dict[str, np.ndarray],
    kind: Type = Type.F32,
    architecture: str = "llama",
    tokens: list[str] | None = None,
    more: dict[str, Any] | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(64)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens or ["a", "b", "ab", "<|end|>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    for key, value in (more or {}).items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32 if isinstance(value, float) else writer.add_string
        add(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor, raw_dtype=None if tensor.dtype == np.float32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _model(path: Path, **options: Any) -> Path:
    return _write(path, {name: _matrix(*shape) for name, shape in _shapes().items()}, **options)


@pytest.mark.parametrize("name", QUANTISED)
def test_what_was_quantised_is_read_back(name: str, tmp_path: Path) -> None:
    value = _matrix(6, 256)
    stored = quants.quantize(value, Type[name])
    path = _write(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": stored}, Type[name])
    tensor = open_checkpoint(str(path)).read("model.layers.0.mlp.up_proj.weight")
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    np.testing.assert_array_equal(tensor, quants.dequantize(stored, Type[name]).reshape(6, 256))
    steps = {"Q4_0": 0.3, "Q4_1": 0.3, "Q5_0": 0.15, "Q8_0": 0.02, "BF16": 0.02, "F16": 0.002, "F32": 0.0}
    assert np.abs(tensor - value).max() <= steps[name]


@pytest.mark.parametrize("name", CRAFTED)
def test_k_quants_are_read_in_pieces_as_the_library_reads_them_whole(name: str, tmp_path: Path) -> None:
    rows, (block, width) = 2 * 2048 + 3, gguf.GGML_QUANT_SIZES[Type[name]]
    stored = np.random.default_rng(5).integers(0, 48, (rows, width), dtype=np.uint8)  # small bytes: no NaN in the half floats
    path = _write(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": stored}, Type[name])
    tensor = open_checkpoint(str(path)).read("model.layers.0.mlp.up_proj.weight")
    assert tensor.shape == (rows, block)
    np.testing.assert_array_equal(tensor, quants.dequantize(stored, Type[name]))


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    _, width = gguf.GGML_QUANT_SIZES[Type.IQ2_XXS]
    path = _write(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": np.zeros((2, width), np.uint8)}, Type.IQ2_XXS)
    with pytest.raises(UnsupportedError, match=r"blk\.0\.ffn_up\.weight has type IQ2_XXS; supported: BF16, F16"):
        open_checkpoint(str(path))


def test_metadata_becomes_config_keys(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(_model(tmp_path / "m.gguf")))
    spec = decoder_spec(checkpoint.config)
    assert (spec.family, spec.vocab_size, spec.hidden_size, spec.intermediate_size) == ("llama", VOCABULARY, HIDDEN, INNER)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (1, HEADS, KV_HEADS, HEAD_DIM)
    assert (spec.max_position, spec.tied_head) == (64, False)
    assert spec.norm_eps == pytest.approx(1e-5)
    assert spec.rope.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / HEAD_DIM))
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ((3,), None)


def test_without_an_output_tensor_the_head_is_tied(tmp_path: Path) -> None:
    tensors = {name: _matrix(*shape) for name, shape in _shapes().items() if name != "output.weight"}
    assert decoder_spec(open_checkpoint(str(_write(tmp_path / "m.gguf", tensors))).config).tied_head


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Llama's queries and keys."""
    rows = weight.shape[0] // heads
    order = [head * rows + half * rows // 2 + pair for head in range(heads) for pair in range(rows // 2) for half in (0, 1)]
    return weight[order]


def test_half_split_undoes_the_converters_order() -> None:
    weight, bias = _matrix(KV_HEADS * HEAD_DIM, 8), _matrix(KV_HEADS * HEAD_DIM)
    np.testing.assert_array_equal(half_split(_interleaved(weight, KV_HEADS), KV_HEADS), weight)
    np.testing.assert_array_equal(half_split(_interleaved(bias, KV_HEADS), KV_HEADS), bias)


@pytest.mark.parametrize(("architecture", "reordered"), [("llama", True), ("qwen2", False)])
def test_only_llamas_queries_and_keys_are_reordered(architecture: str, reordered: bool, tmp_path: Path) -> None:
    query, key = _matrix(HIDDEN, HIDDEN), _matrix(KV_HEADS * HEAD_DIM, HIDDEN)
    tensors = {name: _matrix(*shape) for name, shape in _shapes().items()}
    tensors["blk.0.attn_q.weight"] = _interleaved(query, HEADS) if reordered else query
    tensors["blk.0.attn_k.weight"] = _interleaved(key, KV_HEADS) if reordered else key
    if architecture == "qwen2":
        tensors |= {f"blk.0.attn_{part}.bias": _matrix(tensors[f"blk.0.attn_{part}.weight"].shape[0]) for part in "qkv"}
    checkpoint = open_checkpoint(str(_write(tmp_path / "m.gguf", tensors, architecture=architecture)))
    weights = CheckpointWeights(checkpoint, decoder_spec(checkpoint.config), family(architecture))
    np.testing.assert_array_equal(weights.read("layers.0.q"), query)
    np.testing.assert_array_equal(weights.read("layers.0.k"), key)
    np.testing.assert_array_equal(weights.read("layers.0.v"), tensors["blk.0.attn_v.weight"])


def test_rope_factors_in_a_tensor_divide_the_frequencies(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    plain = decoder_spec(open_checkpoint(str(_model(tmp_path / "plain.gguf"))).config).rope.inverse_frequencies
    tensors = {name: _matrix(*shape) for name, shape in _shapes().items()} | {"rope_freqs.weight": factors}
    scaled = decoder_spec(open_checkpoint(str(_write(tmp_path / "m.gguf", tensors))).config).rope.inverse_frequencies
    np.testing.assert_allclose(scaled, np.array(plain) / factors, rtol=1e-6)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"llama.rope.dimension_count": 32}, "llama.rope.dimension_count 32 differs from the head dimension 64"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "rope_type 'yarn' is not supported"),
        ({"llama.expert_count": 8}, "num_local_experts 8 is not supported"),
        ({"split.count": 3}, "one of 3 parts of a model; join them"),
    ],
)
def test_what_is_not_built_is_refused(more: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = _model(tmp_path / "m.gguf", more=more)
    with pytest.raises(UnsupportedError, match=sentence):
        decoder_spec(open_checkpoint(str(path)).config)


@pytest.mark.parametrize(
    "more", [{"llama.attention.head_count": "many"}, {"tokenizer.ggml.token_type": "x"}, {"tokenizer.ggml.bos_token_id": 9}]
)
def test_metadata_of_another_type_is_one_sentence(more: dict[str, Any], tmp_path: Path) -> None:
    more = {"tokenizer.ggml.add_bos_token": 1} | more
    path = _write(tmp_path / "m.gguf", {name: _matrix(*shape) for name, shape in _shapes().items()}, more=more)
    with pytest.raises(CheckpointError, match=r"m\.gguf: its metadata is inconsistent \(.*\); convert the model anew"):
        open_checkpoint(str(path))


def test_linear_scaling_is_read(tmp_path: Path) -> None:
    path = _model(tmp_path / "m.gguf", more={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert decoder_spec(open_checkpoint(str(path)).config).rope.inverse_frequencies[0] == 0.25


def test_an_unknown_architecture_is_an_unknown_family(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(_model(tmp_path / "m.gguf", architecture="starcoder2")))
    with pytest.raises(UnsupportedError, match="family 'starcoder2' is not supported"):
        decoder_spec(checkpoint.config)


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.0001, 0.0002, 0.0004, 0.5, 0.999999])
def test_a_truncated_file_is_found_at_open(share: float, tmp_path: Path) -> None:
    path = _model(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"m\.gguf: truncated.*download it again") as caught:
        open_checkpoint(str(path))
    assert "\n" not in str(caught.value)


def test_every_cut_of_the_header_is_a_clear_error(tmp_path: Path) -> None:
    content = _model(tmp_path / "m.gguf").read_bytes()
    header = content.index(b"blk.0.ffn_down.weight")
    for cut in range(0, header, 7):
        (tmp_path / "cut.gguf").write_bytes(content[:cut])
        with pytest.raises(CheckpointError):
            open_checkpoint(str(tmp_path / "cut.gguf"))


def test_lengths_beyond_the_file_end_at_once(tmp_path: Path) -> None:
    path = _model(tmp_path / "m.gguf")
    content = bytearray(path.read_bytes())
    start = content.index(b"tokenizer.ggml.token_type") + len(b"tokenizer.ggml.token_type") + 8
    content[start : start + 8] = (2**60).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated or corrupt in its header"):
        open_checkpoint(str(path))


def test_not_a_gguf_file_and_another_version(tmp_path: Path) -> None:
    path = _model(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(b"GGML" + content[4:])
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(str(path))
    path.write_bytes(content[:4] + (9).to_bytes(4, "little") + content[8:])
    with pytest.raises(UnsupportedError, match="GGUF version 9 is not supported"):
        open_checkpoint(str(path))


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    path = _model(tmp_path / "m.gguf")
    before = open_checkpoint(str(path)).digest()
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "other.gguf"
    content = bytearray(path.read_bytes())
    copy.write_bytes(content)
    assert open_checkpoint(str(copy)).digest() == before
    content[-5] ^= 1
    copy.write_bytes(content)
    assert open_checkpoint(str(copy)).digest() != before


def test_a_tokenizer_beside_the_file_is_preferred(tmp_path: Path) -> None:
    path = _model(tmp_path / "m.gguf", more={"tokenizer.chat_template": "inside"})
    assert b"<|end|>" in open_checkpoint(str(path)).tokenizer.tokenizer_json
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.tokenizer.tokenizer_json == b'{"version": "1.0"}'
    assert checkpoint.tokenizer.chat_template == "inside"
    assert checkpoint.eos_token_ids == (3,)
