"""Streaming text: whole characters only, nothing past a stop string, and all of it in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from specbuild.bundle import Vocabulary
from specbuild.errors import RequestError
from specbuild.runtime.detokenizer import Detokenizer, StopFilter
from specbuild.runtime.tokenizer import REPLACEMENT, Tokenizer

TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
VOCABULARY = Vocabulary(size=256, bos_token_id=None, eos_token_ids=(), pad_token_id=None)


def write_byte_tokenizer(folder: Path) -> None:
    """A tokenizer that has a token for each byte and nothing else: every character but ASCII is split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Tokenizer(folder, VOCABULARY)


@given(text=st.text(alphabet=st.characters(exclude_characters=REPLACEMENT, codec="utf-8")), prompt=st.text(max_size=3))
def test_no_character_is_ever_split_and_none_is_lost(tokenizer: Tokenizer, text: str, prompt: str) -> None:
    detokenizer = Detokenizer(tokenizer, tokenizer.encode(prompt))
    pieces = [detokenizer.push(token) for token in tokenizer.encode(text)]
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""


@given(tokens=st.lists(st.integers(0, 255)))
def test_any_bytes_at_all_come_out_as_their_decoding(tokenizer: Tokenizer, tokens: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer, [])
    shown = "".join(detokenizer.push(token) for token in tokens) + detokenizer.flush()
    assert shown == tokenizer.decode(tokens)


def test_an_unfinished_character_is_held_and_shown_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [])
    first, second, *_ = tokenizer.encode("€")
    assert [detokenizer.push(first), detokenizer.push(second)] == ["", ""]
    assert detokenizer.flush() == REPLACEMENT


@given(text=st.text("ab", max_size=40), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), data=st.data())
def test_text_is_cut_before_the_first_stop_string_however_it_arrives(text: str, stops: list[str], data: st.DataObject) -> None:
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    stop_filter, shown, start = StopFilter(stops), "", 0
    while start < len(text):
        size = data.draw(st.integers(1, 3))
        piece, stop = stop_filter.push(text[start : start + size])
        shown += piece
        assert not any(stop_string in shown for stop_string in stops)
        if stop is not None:
            assert shown + stop == text[: len(shown) + len(stop)]
            # The first stop to be complete wins; none can have been complete before this piece.
            assert not any(s in text[:start] for s in stops)
            return
        start += size
    assert not found
    assert shown + stop_filter.flush() == text


def test_chat_messages_go_through_the_template(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "hi"}])) == "<|user|>hi<|assistant|>"


def test_a_template_error_is_the_requests(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate"):
        Tokenizer(tmp_path, VOCABULARY).chat([])


def test_without_a_template_a_chat_is_refused(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer(tmp_path, VOCABULARY).chat([{"role": "user", "content": "hi"}])
