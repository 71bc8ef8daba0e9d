"""Dialogues that the target writes with itself: what is asked, in how many turns, over which passages. Seeded, a shard at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from . import openings
from .teacher import Teacher, Wish

T = TypeVar("T")
Excerpt = Callable[[int, int], str]
"""Part of some passage, of so many tokens at least and below the most."""

MARK = "\u241f"
"""Stands for somebody's words while the chat template is taken apart; no text has it."""
FREE_TOKENS = 3
"""First tokens of a user's turn that are drawn at temperature 1: without them subjects repeat, with more they make no sense."""
SECOND_TURNS = 0.3
"""Share of the dialogues that go on."""
GREEDY = 0.5
"""Share of the answers at temperature 0."""
TURN_TOKENS, QUESTION_TOKENS, FOREIGN_TOKENS = 64, 32, 56
"""The most that the target writes of a user's turn: all of it, a question about passages, a text to translate."""


class Heat(NamedTuple):
    """How freely tokens are drawn."""

    temperature: float
    top_p: float


FREE, WARM, COLD = Heat(1.0, 1.0), Heat(0.7, 0.95), Heat(0.0, 1.0)


class Ask(NamedTuple):
    """A user's turn: the words given, and how many tokens the target may add to them."""

    given: str
    more: int


@dataclass
class Dialogue:
    """One being written."""

    kind: str
    tokens: list[int] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    """[from, to) of what the assistant says."""


class Frame:
    """The fixed words of a chat template around a user's turn; line breaks where the checkpoint has none."""

    def __init__(self, teacher: Teacher) -> None:
        conversation = [{"role": role, "content": MARK} for role in ("user", "assistant", "user")]
        tokens = teacher.chat(conversation)
        parts = [] if tokens is None else teacher.decode(tokens).split(MARK)
        self.opening, self.closing, self.between = parts[:3] if len(parts) == 4 else ("", "\n", "\n")


class Writer:
    """Writes shards of dialogues; each depends on the seed, its number and the passages given, nothing else."""

    def __init__(self, teacher: Teacher, *, seed: int, answer_tokens: int) -> None:
        self._teacher = teacher
        self._seed = seed
        self._answer_tokens = answer_tokens
        self._frame = Frame(teacher)

    def shard(self, number: int, count: int, passages: Sequence[Sequence[int]]) -> list[Dialogue]:
        """``count`` dialogues. ``passages``: texts of earlier shards; where there are none, no dialogue is about one."""
        random = np.random.default_rng([self._seed, number])
        shares = {kind: share for kind, (share, _) in KINDS.items() if passages or kind not in ABOUT_PASSAGES}
        chosen = random.choice(len(shares), count, p=np.array(list(shares.values())) / sum(shares.values()))
        dialogues = [Dialogue(list(shares)[index]) for index in chosen]
        asks = [KINDS[dialogue.kind][1](random, self._excerpts(random, passages)) for dialogue in dialogues]
        self._turn(dialogues, asks, self._frame.opening, random)
        again = [dialogue for dialogue in dialogues if random.random() < SECOND_TURNS and dialogue.answers]
        self._turn(again, [Ask(pick(random, openings.FOLLOW_UPS), TURN_TOKENS) for _ in again], self._frame.between, random)
        return dialogues

    def _excerpts(self, random: np.random.Generator, passages: Sequence[Sequence[int]]) -> Excerpt:
        """From ``passages``."""

        def excerpt(least: int, most: int) -> str:
            text = passages[random.integers(len(passages))]
            return self._teacher.decode(text[: random.integers(least, most)]).strip()

        return excerpt

    def _turn(self, dialogues: Sequence[Dialogue], asks: Sequence[Ask], frame: str, random: np.random.Generator) -> None:
        """Let the user of each dialogue speak, then the assistant; a dialogue that has no room for both stays as it is."""
        told = [
            [*self._unended(dialogue.tokens), *self._teacher.encode(frame + ask.given)]
            for dialogue, ask in zip(dialogues, asks, strict=True)
        ]
        room = self._teacher.max_seq_len - TURN_TOKENS - 2 * self._answer_tokens
        turns = [
            (dialogue, text, ask.more) for dialogue, text, ask in zip(dialogues, told, asks, strict=True) if len(text) + ask.more < room
        ]
        texts = self._extend([text for _, text, _ in turns], [min(more, FREE_TOKENS) for *_, more in turns], FREE, random)
        left = [0 if text[-1] in self._teacher.ends else max(0, more - FREE_TOKENS) for text, (*_, more) in zip(texts, turns, strict=True)]
        texts = self._extend(texts, left, WARM, random)
        closing = self._teacher.encode(self._frame.closing)
        asked = [[*self._unended(text), *closing] for text in texts]
        kinds = [dialogue.kind for dialogue, *_ in turns]
        limits = [self._answer_tokens * (2 if kind == "passage" else 1) for kind in kinds]
        heats = [WARM if kind == "passage" or random.random() >= GREEDY else COLD for kind in kinds]
        answered = self._extend(asked, limits, heats, random)
        for (dialogue, *_), before, after in zip(turns, asked, answered, strict=True):
            dialogue.tokens = after
            dialogue.answers.append((len(before), len(after)))

    def _extend(
        self, texts: Sequence[list[int]], limits: Sequence[int], heats: Sequence[Heat] | Heat, random: np.random.Generator
    ) -> list[list[int]]:
        """Each text with up to so many more tokens."""
        each = [heats] * len(texts) if isinstance(heats, Heat) else heats
        seeds = random.integers(2**63, size=len(texts)).tolist()
        wishes = {
            index: Wish(tuple(text), limit, seed, heat.temperature, heat.top_p)
            for index, (text, limit, seed, heat) in enumerate(zip(texts, limits, seeds, each, strict=True))
            if limit > 0
        }
        written = dict(zip(wishes, self._teacher.write(list(wishes.values())), strict=True))
        return [[*text, *written.get(index, ())] for index, text in enumerate(texts)]

    def _unended(self, tokens: Sequence[int]) -> list[int]:
        """Without the token that ended it: the template writes its own."""
        return list(tokens[:-1] if tokens and tokens[-1] in self._teacher.ends else tokens)


def pick(random: np.random.Generator, table: Sequence[T]) -> T:
    """One of ``table``."""
    return table[random.integers(len(table))]


def _question(random: np.random.Generator, excerpt: Excerpt) -> Ask:
    return Ask(pick(random, openings.QUESTIONS), TURN_TOKENS)


def _problem(random: np.random.Generator, excerpt: Excerpt) -> Ask:
    return Ask(pick(random, openings.PROBLEM_TASKS) + pick(random, openings.PROBLEMS), TURN_TOKENS)


def _passage(random: np.random.Generator, excerpt: Excerpt) -> Ask:
    return Ask(pick(random, openings.PASSAGES), QUESTION_TOKENS)


def _task(random: np.random.Generator, excerpt: Excerpt) -> Ask:
    before, after = pick(random, openings.TASKS)
    return Ask("\n\n".join(filter(None, [before, excerpt(60, 360), after])), 0)


def _retrieval(random: np.random.Generator, excerpt: Excerpt) -> Ask:
    found = [f"Passage {number}: {excerpt(50, 150)}" for number in range(1, random.integers(3, 6))]
    return Ask("\n\n".join(filter(None, [pick(random, openings.PASSAGE_QUESTIONS), *found, "Question:"])), QUESTION_TOKENS)


def _translation(random: np.random.Generator, excerpt: Excerpt) -> Ask:
    language, beginnings = pick(random, tuple(openings.LANGUAGES.items()))
    return Ask(f"{pick(random, openings.TRANSLATIONS).format(language)}\n\n{pick(random, beginnings)}", FOREIGN_TOKENS)


KINDS: dict[str, tuple[float, Callable[[np.random.Generator, Excerpt], Ask]]] = {
    "question": (0.36, _question),
    "problem": (0.12, _problem),
    "passage": (0.14, _passage),
    "task": (0.14, _task),
    "retrieval": (0.12, _retrieval),
    "translation": (0.12, _translation),
}
"""Kind of dialogue → its share, and how its user begins. Answers of ``passage`` are what others are about."""
ABOUT_PASSAGES = frozenset({"task", "retrieval"})
