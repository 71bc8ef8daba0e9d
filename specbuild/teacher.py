"""The engines of a bundle as the teacher of a draft head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbuild.builders.training.teacher import Wish
from specbuild.bundle import Bundle
from specbuild.prompts import Messages
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams


class EngineTeacher:
    """See ``specbuild.builders.training.teacher.Teacher``."""

    def __init__(self, bundle: Bundle, *, threads: int | None = None) -> None:
        self._generator = Generator(bundle, threads=threads)
        self.max_seq_len = self._generator.entry.max_seq_len
        self.ends = frozenset(bundle.manifest.vocabulary.eos_token_ids)

    def write(self, wishes: Sequence[Wish]) -> list[tuple[int, ...]]:
        # Attention reads as far as the longest of a batch has got: those that are about as long are written together.
        order = sorted(range(len(wishes)), key=lambda index: len(wishes[index].prompt))
        params = [
            SamplingParams(temperature=wish.temperature, top_p=wish.top_p, max_tokens=wish.max_tokens, seed=wish.seed, speculation="off")
            for wish in map(wishes.__getitem__, order)
        ]
        completions = self._generator.generate([wishes[index].prompt for index in order], params)
        written = dict(zip(order, completions, strict=True))
        return [written[index].token_ids for index in range(len(wishes))]

    def encode(self, text: str) -> list[int]:
        return self._generator.tokenizer.encode(text, special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._generator.tokenizer.decode(tokens, skip_special=False)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int] | None:
        tokenizer = self._generator.tokenizer
        return tokenizer.chat(messages) if tokenizer.has_chat_template else None

    def prompt(self, content: str | Messages) -> list[int]:
        """Token ids of a user's prompt; text goes through the chat template where there is one."""
        tokenizer = self._generator.tokenizer
        if isinstance(content, str) and tokenizer.has_chat_template:
            content = [{"role": "user", "content": content}]
        return self._generator.encode(content)
