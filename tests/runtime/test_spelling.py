"""Translating between vocabularies: text and tokens stay in step however they come, a draft is cut as the other tokenizer would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_checkpoint import END, tokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, processors

from specbuild.bundle import Vocabulary
from specbuild.runtime.draft import Draft
from specbuild.runtime.proposers.base import Ask, Proposer
from specbuild.runtime.proposers.retokenized import RetokenizedProposer
from specbuild.runtime.proposers.spelling import KEEP, Spelling, Transcript, decoded
from specbuild.runtime.request import Request, Running
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.tokenizer import Tokenizer

PIECES = ["the", " ", " the", " cat", "é", "读书", "🙂", "\n", "\n\n", "re", "    ", "=12", END]
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=60).map("".join)
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("c", "a"), ("Ġ", "ca"), ("Ġca", "t"), ("Ċ", "Ċ"), ("è", "¯"), ("r", "e"), ("the", "re"))


def byte_level() -> FastTokenizer:
    return tokenizer(merges=MERGES)


def coarse() -> FastTokenizer:
    """Other ids, other merges."""
    return tokenizer(("<|tool|>",), merges=(*MERGES[:3], ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("ð", "Ł"), ("ðŁ", "Ļ"), ("ðŁĻ", "Ĥ")))


def sentence_piece() -> FastTokenizer:
    """As Llama 2 has it: a BOS and a space before every text, spaces are ▁, and what has no token is bytes."""
    merges = [("▁", "t"), ("▁t", "h"), ("h", "e"), ("▁th", "e"), ("▁", "▁"), ("r", "e")]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"<s>": 256}
    vocabulary |= {piece: 257 + index for index, piece in enumerate([*"▁thecar读", *(left + right for left, right in merges)])}
    fast = FastTokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
    )
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return fast


KINDS: dict[str, Callable[[], FastTokenizer]] = {kind.__name__: kind for kind in (byte_level, coarse, sentence_piece)}


@pytest.fixture(scope="module")
def spellings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Spelling]:
    made = {}
    for name, kind in KINDS.items():
        folder, fast = tmp_path_factory.mktemp(name), kind()
        fast.save(str(folder / "tokenizer.json"))
        known = Vocabulary(size=fast.get_vocab_size(), bos_token_id=256, eos_token_ids=(256,), pad_token_id=None)
        made[name] = Spelling(Tokenizer(folder, known), known)
    return made


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from([*KINDS]), text=TEXTS)
def test_a_transcript_says_the_text_however_it_comes(spellings: dict[str, Spelling], data: st.DataObject, kind: str, text: str) -> None:
    """In pieces that split characters; what is settled never changes, and little stays open."""
    spelling, whole = spellings[kind], text.encode()
    cut = data.draw(st.integers(0, len(whole)))
    transcript = Transcript.of(spelling, whole[:cut])
    assert len(transcript.settled) > 0
    opening = 1 if spelling.opening or not decoded(whole[:cut])[0] else 0
    while cut < len(whole):
        before, more = list(transcript.settled), whole[cut : (cut := data.draw(st.integers(cut + 1, min(len(whole), cut + 40))))]
        ahead = transcript.tail(more)
        transcript.push(more)
        assert transcript.settled[: len(before)] == before
        assert [*before, *ahead[0]][: len(transcript.settled)] == transcript.settled, "to go on is to push"
        tail, held = transcript.tail()
        said = spelling.says([*transcript.settled, *tail][opening:]) + held
        assert said.lstrip(b" ") == whole[:cut].lstrip(b" "), "but for the space that some write before a text"
        assert len(transcript.text) <= 4 * KEEP


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from([*KINDS]), text=TEXTS)
def test_a_continuation_is_what_the_tokenizer_would_have_written(
    spellings: dict[str, Spelling], data: st.DataObject, kind: str, text: str
) -> None:
    """After any token, one that ends in mid-character too."""
    spelling = spellings[kind]
    tokens = [span.token for span in spelling.spans(text)]
    at = data.draw(st.integers(0, len(tokens) - 1))
    context = tokens[max(0, at - 6) : at]
    rest = spelling.says(tokens[at:])
    if not decoded(spelling.says(context))[0].startswith("\ufffd"):  # it begins with a whole character
        assert spelling.continued(context, rest) == tokens[at:]
    cut = rest[: data.draw(st.integers(0, len(rest)))]
    assert cut.startswith(spelling.says(spelling.continued(context, cut)))


def test_a_draft_that_would_join_with_the_text_is_written_after_it_as_it_is(spellings: dict[str, Spelling]) -> None:
    """The target has stopped in mid-word: what it says next cannot be the joined token."""
    spelling = spellings["byte_level"]
    t, h, e, the, re = (spelling.tokenizer.encode(piece)[0] for piece in ("t", "h", "e", "the", "re"))
    assert spelling.continued([t, h], b"ere") == [e, re]
    assert spelling.continued([t], b"he") == spelling.tokenizer.encode("he")
    assert spelling.continued([the], b"re") == [re]


def test_a_character_is_drafted_whole_or_not_at_all(spellings: dict[str, Spelling]) -> None:
    spelling, smile = spellings["byte_level"], "🙂".encode()
    parts = spelling.tokenizer.encode("🙂")
    assert len(parts) == 4
    for begun in range(1, 4):
        assert spelling.continued(parts[:begun], smile[begun:]) == parts[begun:]
        assert spelling.continued([], smile[:begun]) == []
        assert spelling.continued([], b"t" + smile[:begun]) == spelling.tokenizer.encode("t")


class Scripted(Proposer):
    """Drafts what it is told to, and notes the texts that it was asked to go on from."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.texts: list[list[int]] = []

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self.texts += [ask.tokens for ask in asks]
        return [Draft.chain(self.tokens[: ask.draft_len]) for ask in asks]


@pytest.mark.parametrize("kind", ["coarse", "sentence_piece"])
def test_a_draft_after_half_a_character_ends_that_character(spellings: dict[str, Spelling], kind: str) -> None:
    target, own = spellings["byte_level"], spellings[kind]
    text = target.tokenizer.encode("the cat 🙂")
    *begun, third, fourth = text
    sequence = Running(Request(0, tuple(begun), SamplingParams(), 0, "draft_model", 7), "coupled", target.tokenizer, 264, (256,))
    model = Scripted()
    proposer = RetokenizedProposer(model, own, target, longest=100)
    proposer.admit(sequence)

    def drafted(said: str, length: int = 7, after: tuple[int, ...] = ()) -> tuple[int, ...]:
        model.tokens = [span.token for span in own.spans(said)]
        return proposer.propose([Ask(sequence, length, after)])[0].tokens

    the = target.tokenizer.encode(" the")
    assert drafted("🙂 the") == (third, fourth, *the)
    assert drafted("🙂 the", after=(third,)) == (fourth, *the)
    assert drafted("🙂 the", length=2 if kind == "coarse" else 4)[:1] == (third,)
    assert drafted(" the") == drafted("é") == drafted("") == (), "no continuation of what is there"
    model.tokens = [*(span.token for span in own.spans("🙂")), 256, *(span.token for span in own.spans(" the"))]
    assert proposer.propose([Ask(sequence, 7)])[0].tokens == (third, fourth), "the model ended its text there"
    assert {own.says(tokens).removeprefix(b"<s>").strip() for tokens in model.texts} == {b"the cat"}
    for token in (third, fourth):
        sequence.context.push(token)
    assert drafted(" the") == tuple(the)
    assert own.says(model.texts[-1]).endswith("the cat 🙂".encode())
