"""The bytes that a token stands for, whatever kind of vocabulary it is of: together they are the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_checkpoint import END, tokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers

from specbuild.bundle import Vocabulary
from specbuild.runtime.tokenizer import Tokenizer

TEXTS = st.text(alphabet=st.characters(codec="utf-8"))


def opened(folder: Path, fast: FastTokenizer) -> Tokenizer:
    fast.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder, Vocabulary(size=fast.get_vocab_size(), bos_token_id=None, eos_token_ids=(), pad_token_id=None))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A token for each byte, and some that begin a character and do not end it."""
    return opened(tmp_path_factory.mktemp("bytes"), tokenizer(merges=(("Ġ", "â"), ("Ġâ", "Ĥ"), ("t", "h"))))


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As Llama 2 has it: spaces are ▁, and what has no token is bytes."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "a": 257, "▁a": 258, "ü": 259}
    fast = FastTokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
    )
    return opened(tmp_path_factory.mktemp("pieces"), fast)


@given(text=TEXTS)
def test_bytes_of_a_byte_level_vocabulary(byte_level: Tokenizer, text: str) -> None:
    assert b"".join(byte_level.token_bytes(token) for token in byte_level.encode(text)) == text.encode()


@given(text=TEXTS.filter(lambda text: text and "▁" not in text))
def test_bytes_of_a_sentence_piece_vocabulary(sentence_piece: Tokenizer, text: str) -> None:
    assert b"".join(sentence_piece.token_bytes(token) for token in sentence_piece.encode(text)) == f" {text}".encode()


def test_a_token_that_ends_in_mid_character(byte_level: Tokenizer) -> None:
    first, second = byte_level.encode(" €")
    assert (byte_level.token_bytes(first), byte_level.token_bytes(second)) == (b" \xe2\x82", b"\xac")


def test_a_special_token(byte_level: Tokenizer) -> None:
    (token,) = byte_level.encode(END)
    assert byte_level.token_bytes(token) == END.encode()
