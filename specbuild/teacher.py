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
        params = [
            SamplingParams(temperature=wish.temperature, top_p=wish.top_p, max_tokens=wish.max_tokens, seed=wish.seed, speculation="off")
            for wish in wishes
        ]
        return [completion.token_ids for completion in self._generator.generate([wish.prompt for wish in wishes], params)]

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
