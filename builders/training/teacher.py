"""The target as training sees it: something that writes texts. The roof gives one made of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Wish:
    """How one text is to be continued."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 0.7
    top_p: float = 0.95


class Teacher(Protocol):
    """The target, loaded."""

    max_seq_len: int
    """Tokens of a sequence, prompt and output together."""
    ends: frozenset[int]
    """Tokens that end a text."""

    def write(self, wishes: Sequence[Wish]) -> list[tuple[int, ...]]:
        """A continuation of each prompt, with the token that ended it; the same whatever else is written beside it."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, nothing added."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, special ones too."""
        ...

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int] | None:
        """Token ids of a conversation up to where the assistant is to speak; None: the checkpoint has no chat template."""
        ...
