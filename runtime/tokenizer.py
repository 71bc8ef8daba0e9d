"""Text and chat messages to tokens and back, from the files that a bundle carries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from specbuild.bundle import Vocabulary
from specbuild.errors import BundleError, RequestError

REPLACEMENT = "\ufffd"


class Span(NamedTuple):
    """A token of a text, and the characters start … end − 1 that it is of; white space at the start may be left out."""

    token: int
    start: int
    end: int


class Tokenizer:
    """``tokenizer/`` of a bundle: tokenizer.json and, where the checkpoint had one, its chat template."""

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        try:
            self._fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises plain Exception
            raise BundleError(f"{folder / 'tokenizer.json'}: not a tokenizer ({error}); build the bundle anew") from error
        # Padding and truncation are how the checkpoint was trained, not what a request asks for.
        self._fast.no_padding()
        self._fast.no_truncation()
        template = folder / "chat_template.jinja"
        self._template = template.read_text(encoding="utf-8") if template.is_file() else None
        self._special = {
            "bos_token": self._token(vocabulary.bos_token_id),
            "eos_token": self._token(vocabulary.eos_token_ids[0] if vocabulary.eos_token_ids else None),
        }

    def _token(self, token: int | None) -> str:
        return "" if token is None else self._fast.id_to_token(token) or ""

    @property
    def has_chat_template(self) -> bool:
        """Whether the checkpoint came with one."""
        return self._template is not None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``; ``special`` adds what the checkpoint's tokenizer puts around a text (a BOS, say)."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=special).ids
        return ids

    def spans(self, text: str) -> list[Span]:
        """Tokens of ``text``, with nothing put around it, and where they are. Those of one character all span the whole of it."""
        encoding = self._fast.encode(text, add_special_tokens=False)
        return [Span(token, start, end) for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)]

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ``tokens``; bytes that form no character become U+FFFD."""
        text: str = self._fast.decode(list(tokens), skip_special_tokens=skip_special)
        return text

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 of what ``token`` adds to a text; of one that is a part of a character, that part."""
        before = self.encode("a", special=False)[-1:]  # what begins a text, some decoders strip
        text = self.decode([*before, token], skip_special=False)[len(self.decode(before)) :]
        piece = self._token(token)
        if REPLACEMENT not in text:
            return text.encode()
        if fallback := re.fullmatch("<0x([0-9A-F]{2})>", piece):
            return bytes.fromhex(fallback[1])
        symbols = byte_symbols()
        return bytes(symbols[symbol] for symbol in piece) if symbols.keys() >= set(piece) else text.encode()

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, ending where the assistant is to speak.

        Raises:
            RequestError: the checkpoint has no chat template, or it refuses these messages.
        """
        if self._template is None:
            raise RequestError("this checkpoint has no chat template; give a plain prompt (--raw)")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            text = environment.from_string(self._template).render(messages=messages, add_generation_prompt=True, **self._special)
        except Exception as error:  # a template is a program of the checkpoint's: it may divide by zero, or add null to text
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        # The template writes the special tokens itself.
        return self.encode(text, special=False)


def byte_symbols() -> dict[str, int]:
    """Character → the byte that it stands for in a byte-level vocabulary (GPT-2's): printable ones for themselves, the rest from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
