"""Tokenizers made from GGUF vocabularies: byte-level BPE by pre-tokenizer, SentencePiece with byte fallback."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from specbuild.builders.checkpoints.gguf_tokenizer import PRE_TOKENIZERS, tokenizer_json
from specbuild.errors import CheckpointError, UnsupportedError


def _made(metadata: dict[str, Any]) -> Any:
    content = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return Tokenizer.from_str(tokenizer_json(content, "m.gguf").decode())


BYTES: dict[str, Any] = {
    "model": "gpt2",
    "tokens": ["a", "b", "ab", "1", "2", "12", "Ġ", "Ġa", "<s>", "<think>", "b12"],
    "merges": ["a b", "1 2", "Ġ a"],
    "token_type": [1] * 8 + [3, 4, 1],
}


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["ab", "12", "Ġ", "ab", "12"]),
        ("default", ["ab", "12", "Ġ", "ab", "12"]),
        ("smollm", ["ab", "1", "2", "Ġ", "ab", "1", "2"]),
        ("qwen2", ["ab", "1", "2", "Ġ", "ab", "1", "2"]),
        ("llama-bpe", ["ab", "12", "Ġ", "ab", "12"]),
    ],
)
def test_text_is_cut_as_the_pre_tokenizer_says(pre: str, pieces: list[str]) -> None:
    assert _made({**BYTES, "pre": pre}).encode("ab12 ab12").tokens == pieces


def test_llama_takes_a_whole_piece_that_is_a_token() -> None:
    tokens = {**BYTES, "tokens": ["a", "b", "c", "ab", "abc"], "merges": ["a b"], "token_type": [1] * 5}
    assert _made({**tokens, "pre": "llama-bpe"}).encode("abc").tokens == ["abc"]
    assert _made({**tokens, "pre": "gpt-2"}).encode("abc").tokens == ["ab", "c"]


def test_control_tokens_are_special_and_others_are_kept_whole() -> None:
    tokenizer = _made({**BYTES, "pre": "gpt-2"})
    ids = tokenizer.encode("a<think>b<s>").ids
    assert ids == [0, 9, 1, 8]
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<think>b<s>"


def test_composed_text_where_the_model_was_trained_on_it() -> None:
    tokens = {"model": "gpt2", "pre": "qwen2", "tokens": ["Ã", "©", "Ã©"], "merges": ["Ã ©"]}
    assert _made(tokens).encode("e\N{COMBINING ACUTE ACCENT}").tokens == ["Ã©"]


@pytest.mark.parametrize(("said", "expected"), [(None, [8, 0]), (True, [8, 0]), (False, [0])])
def test_bos_opens_a_text_unless_the_file_says_otherwise(said: bool | None, expected: list[int]) -> None:
    flags = {} if said is None else {"add_bos_token": said}
    assert _made({**BYTES, "pre": "llama-bpe", "bos_token_id": 8, **flags}).encode("a").ids == expected
    assert _made({**BYTES, "pre": "gpt-2", "bos_token_id": 8}).encode("a").ids == [0]


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab", "c"]
SENTENCES = {
    "model": "llama",
    "tokens": PIECES,
    "scores": [0.0] * 259 + [-6.0, -7.0, -8.0, -2.0, -1.0, -3.0, -9.0],
    "token_type": [2, 3, 3, *[6] * 256, *[1] * 7],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unknown_token_id": 0,
}


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = _made(SENTENCES)
    assert tokenizer.encode("ab").tokens == ["<s>", "▁ab"]
    assert tokenizer.encode("ab a").tokens == ["<s>", "▁ab", "▁a"]
    assert tokenizer.encode("c😀", add_special_tokens=False).tokens == ["▁", "c", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert tokenizer.decode(tokenizer.encode("ab c😀 a").ids) == "ab c😀 a"


def test_sentencepiece_without_a_prefix_space() -> None:
    tokenizer = _made({**SENTENCES, "add_space_prefix": False, "add_bos_token": False})
    assert tokenizer.encode("ab a").tokens == ["ab", "▁a"]
    assert tokenizer.decode(tokenizer.encode("ab a").ids) == "ab a"


def test_an_unknown_pre_tokenizer_lists_the_known() -> None:
    with pytest.raises(UnsupportedError, match=r"m\.gguf: pre-tokenizer 'viking' is not known \(known: deepseek-r1-qwen, default, gpt-2"):
        _made({**BYTES, "pre": "viking"})
    assert {"smollm", "llama-bpe", "qwen2", "gpt-2", "default", "tekken"} <= set(PRE_TOKENIZERS)


def test_another_kind_and_none_at_all() -> None:
    with pytest.raises(UnsupportedError, match="tokenizer of kind 't5' is not supported"):
        _made({**BYTES, "model": "t5"})
    with pytest.raises(CheckpointError, match=r"no tokenizer inside; put the model's tokenizer\.json beside it"):
        _made({"model": "gpt2"})


@pytest.mark.parametrize("merges", [["a z"], ["ab"]])
def test_merges_outside_the_vocabulary_are_inconsistent(merges: list[str]) -> None:
    with pytest.raises(CheckpointError, match=r"m\.gguf: its vocabulary is inconsistent \(.*\); put the model's tokenizer\.json beside it"):
        _made({**BYTES, "merges": merges})
