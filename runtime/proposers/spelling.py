"""One text in the tokens of one vocabulary, piece by piece: what translating between two vocabularies rests on."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from specbuild.bundle import Vocabulary

from ..tokenizer import Span, Tokenizer

LEAD = "\n"
"""Written before a text that stands inside another: some tokenizers begin every text with a space, and a line break joins with no word."""
KEEP = 32
"""Characters at the end of a growing text whose tokens may still change."""


class Spelling:
    """A vocabulary as text: what its tokens say, and the tokens of a piece of text."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self.opening = tuple(tokenizer.encode(""))
        """What the tokenizer puts before a text: a BOS, or nothing."""
        self._lead = tokenizer.encode(LEAD, special=False)
        self._bytes: dict[int, bytes] = {}

    def says(self, tokens: Sequence[int]) -> bytes:
        """UTF-8 of ``tokens``, characters that they leave unfinished included."""
        for token in tokens:
            if token not in self._bytes:
                self._bytes[token] = self.tokenizer.token_bytes(token)
        return b"".join(self._bytes[token] for token in tokens)

    def spans(self, text: str) -> list[Span]:
        """Tokens of a text that stands inside another."""
        led, count = self.tokenizer.spans(LEAD + text), len(self._lead)
        if [span.token for span in led[:count]] != self._lead:  # it joined with what follows
            return self.tokenizer.spans(text)
        return [Span(token, start - len(LEAD), end - len(LEAD)) for token, start, end in led[count:]]

    def continued(self, context: Sequence[int], more: bytes) -> list[int]:
        """Tokens that say ``more`` after the tokens ``context``; a character that ``more`` leaves unfinished is left out.

        They are those that the tokenizer gives the whole text, if that begins with ``context``. Where it would join the end of
        ``context`` with ``more``, context is left out from its front, in the end all of it.
        """
        for start in range(len(context) + 1):
            kept = list(context[start:])
            text, _ = decoded(self.says(kept) + more)
            tokens = [span.token for span in self.spans(text)]
            if tokens[: len(kept)] == kept and (new := self._beginning(tokens[len(kept) :], more)):
                return new
        return []

    def _beginning(self, tokens: list[int], text: bytes) -> list[int]:
        """The first of ``tokens`` that say what ``text`` begins with: a tokenizer may drop, add or replace characters."""
        for count, token in enumerate(tokens):
            said = self.says([token])
            if not text.startswith(said):
                return tokens[:count]
            text = text[len(said) :]
        return tokens


@dataclass
class Transcript:
    """A growing text in the tokens of ``spelling``. Those of its last few words are found anew each time, the others are settled:
    a token once settled stays, whatever follows. (Now and then the tokenizer would have joined two across such a place; the text is the
    same.)"""

    spelling: Spelling
    settled: list[int]
    """One token at least."""
    text: str = ""
    """What follows them, whole characters."""
    held: bytes = b""
    """Of the unfinished character after that."""

    @classmethod
    def of(cls, spelling: Spelling, text: bytes) -> Transcript:
        """The transcript of a text's beginning."""
        whole, held = decoded(text)
        made = cls(spelling, list(spelling.opening), whole, held)
        # The first token too: what follows it is known to stand inside the text.
        made._settle(spelling.tokenizer.spans(whole), at_least=1)
        if not made.settled:
            known = spelling.vocabulary
            made.settled = [next(iter(known.eos_token_ids), 0) if known.bos_token_id is None else known.bos_token_id]
        return made

    def push(self, more: bytes) -> None:
        """The text goes on."""
        text, self.held = decoded(self.held + more)
        self.text += text
        if len(self.text) > 2 * KEEP:
            self._settle(self.spelling.spans(self.text))

    def tail(self, more: bytes = b"") -> tuple[list[int], bytes]:
        """Tokens after the settled ones, were the text to go on with ``more``, and the bytes of an unfinished character after those."""
        text, held = decoded(self.held + more)
        return [span.token for span in self.spelling.spans(self.text + text)], held

    def _settle(self, spans: Sequence[Span], at_least: int = 0) -> None:
        """Settle those of ``spans``, the tokens of ``text``, that end before its last ``KEEP`` characters, up to the end of a word
        if there is one near; or the first ``at_least``."""
        ends = [span.end for span in spans]
        following = [*(span.start for span in spans), len(self.text)][1:]
        # Tokens that are parts of one character all span the whole of it.
        places = [place for place, (end, start) in enumerate(zip(ends, following, strict=True), 1) if start >= end]
        early = [place for place in places if ends[place - 1] <= len(self.text) - KEEP]
        words = [place for place in early[-KEEP:] if self.text[ends[place - 1]].isspace()]
        count = (words or early or places[:at_least] or [0])[-1]
        self.settled += [span.token for span in spans[:count]]
        self.text = self.text[ends[count - 1] :] if count else self.text


def decoded(data: bytes) -> tuple[str, bytes]:
    """The text of ``data`` (bytes that form no character become U+FFFD) and the bytes of a character that is unfinished at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, decoder.getstate()[0]
