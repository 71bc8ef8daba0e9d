"""Where texts come from: the target's own dialogues, the user's prompts answered by it, or plain text as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from .corpus import Text, load_texts
from .dialogues import COLD, WARM, Dialogue, Writer
from .teacher import Teacher, Wish

SHARD_DIALOGUES = 320
"""At each shard's end the batch drains: small shards cost speed, large ones work when a run is killed."""
SHARD_PIECES = 64
LEAST_PASSAGE = 60
"""Tokens of an answer that others are asked about."""
PIECE_TOKENS = 512
"""Of a plain text that is learned at a time."""


class Source(Protocol):
    """Texts, a shard at a time."""

    def shard(self, number: int, before: Sequence[Path]) -> list[Text]:
        """The texts of shard ``number``; ``before``: the files of those before it. Empty: there are no more."""
        ...


class SelfWritten:
    """Dialogues of the target with itself, without end."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def shard(self, number: int, before: Sequence[Path]) -> list[Text]:
        passages = [
            text.tokens[text.learned].tolist()
            for file in before
            for text in load_texts(file)
            if text.kind == "passage" and text.learned.sum() >= LEAST_PASSAGE
        ]
        return [_text(dialogue) for dialogue in self._writer.shard(number, SHARD_DIALOGUES, passages) if dialogue.answers]


class Answered:
    """The user's prompts, each answered twice: greedily and sampled."""

    def __init__(self, teacher: Teacher, prompts: Sequence[Sequence[int]], *, seed: int, answer_tokens: int) -> None:
        room = teacher.max_seq_len - answer_tokens
        self._prompts = [tuple(prompt) for prompt in prompts if len(prompt) <= room]
        self._teacher, self._seed, self._answer_tokens = teacher, seed, answer_tokens

    def shard(self, number: int, before: Sequence[Path]) -> list[Text]:
        size = SHARD_DIALOGUES // 2
        prompts = self._prompts[number * size : (number + 1) * size]
        seeds = np.random.default_rng([self._seed, number]).integers(2**63, size=2 * len(prompts)).tolist()
        wishes = [
            Wish(prompt, self._answer_tokens, seed, heat.temperature, heat.top_p)
            for (prompt, heat), seed in zip(((prompt, heat) for prompt in prompts for heat in (COLD, WARM)), seeds, strict=True)
        ]
        answers = self._teacher.write(wishes)
        return [_learned_from("prompt", [*wish.prompt, *answer], len(wish.prompt)) for wish, answer in zip(wishes, answers, strict=True)]


class Given:
    """A plain text: the target's law over somebody else's words."""

    def __init__(self, tokens: Sequence[int], *, max_seq_len: int) -> None:
        size = min(PIECE_TOKENS, max_seq_len)
        self._pieces = [tokens[start : start + size] for start in range(0, len(tokens), size)]

    def shard(self, number: int, before: Sequence[Path]) -> list[Text]:
        pieces = self._pieces[number * SHARD_PIECES : (number + 1) * SHARD_PIECES]
        return [_learned_from("text", piece, 0) for piece in pieces if len(piece) > 2]


def _text(dialogue: Dialogue) -> Text:
    learned = np.zeros(len(dialogue.tokens), np.bool_)
    for start, end in dialogue.answers:
        learned[start:end] = True
    return Text(dialogue.kind, np.array(dialogue.tokens, np.int32), learned)


def _learned_from(kind: str, tokens: Sequence[int], start: int) -> Text:
    return Text(kind, np.array(tokens, np.int32), np.arange(len(tokens)) >= start)
