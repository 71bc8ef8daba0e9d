"""Which texts went on how: occurrences of a text's end in a growing collection of texts, found by hash chains as in LZ77.

Of each n-gram of a few sizes the latest occurrence is known, and each occurrence knows the one before it. A query takes the largest size
that occurs, follows its chain to the latest occurrences, and compares backwards how far each of them really matches: the longest match is
found unless more than ``RECENT`` later ones share its n-gram. Adding a token and asking both cost O(1). A suffix automaton would find
every match, but it counts occurrences only when it is complete, and nothing can be taken out of it: here the oldest text leaves as it came.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SIZES = (1, 2, 4, 8)
"""Tokens of the n-grams that begin a match."""
RECENT = 16
"""Occurrences that a query looks at."""
LONGEST = 32
"""Tokens that a match is followed back."""
END = -1
"""After each closed text: no token, so that nothing matches across it."""


@dataclass(frozen=True)
class Occurrence:
    """An earlier place where the text's end stood."""

    place: int
    """Of the token that followed."""
    length: int
    """Tokens that are the same before it."""


class TextIndex:
    """Texts, the last of them perhaps still growing. A token takes 300 to 450 bytes, all of which ``forget_oldest`` gives back.

    Places count all tokens that ever came, so that those of kept texts stay when others leave.
    """

    def __init__(self) -> None:
        self._tokens = array("i")
        self._latest: tuple[dict[int, int], ...] = tuple({} for _ in SIZES)
        """For each size: hash of an n-gram → place after its latest occurrence. N-grams of one hash share a chain: matches are compared."""
        self._before = tuple(array("q") for _ in SIZES)
        """For each size and token: the place before it in its n-gram's chain; −1: none."""
        self._first = 0
        """Place of the oldest token that is kept."""
        self._open = 0
        """Place where the growing text begins."""

    def __len__(self) -> int:
        """Tokens kept, ends included."""
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Let the open text grow."""
        for token in tokens:
            place = self._first + len(self._tokens)
            for rank, key in self._keys(len(self._tokens), place - self._open):
                self._before[rank].append(-1 if key is None else self._latest[rank].get(key, -1))
                if key is not None:
                    self._latest[rank][key] = place
            self._tokens.append(token)

    def close(self) -> None:
        """End the open text; the next token begins another."""
        for before in self._before:
            before.append(-1)
        self._tokens.append(END)
        self._open = self._first + len(self._tokens)

    def forget_oldest(self) -> int:
        """Take out the oldest text, which is closed; returns how many tokens that freed."""
        length = self._tokens.index(END)
        for index in range(length):
            for rank, key in self._keys(index, index):
                if key is not None and self._latest[rank].get(key) == self._first + index:
                    del self._latest[rank][key]
        for column in (self._tokens, *self._before):
            del column[: length + 1]
        self._first += length + 1
        return length + 1

    def occurrences(self, text: Sequence[int]) -> list[Occurrence]:
        """Where the end of ``text`` stood before and something followed, the latest first."""
        for rank in reversed(range(len(SIZES))):
            place = self._latest[rank].get(hash(tuple(text[-SIZES[rank] :])), -1) if len(text) >= SIZES[rank] else -1
            found: list[Occurrence] = []
            while place >= self._first and len(found) < RECENT:
                found.append(Occurrence(place, self._matched(place - self._first, text)))
                place = self._before[rank][place - self._first]
            found = [one for one in found if one.length >= SIZES[rank]]
            if found:
                return found
        return []

    def follower(self, place: int, distance: int, ahead: Sequence[int]) -> int | None:
        """The token ``distance`` after ``place``; None where the text ended. ``ahead`` is to follow the open text: past its end the copy
        goes on there, and so a loop in the text is drafted round and round."""
        index = place - self._first + distance
        token = self._tokens[index] if index < len(self._tokens) else ahead[index - len(self._tokens)]
        return None if token == END else token

    def _keys(self, index: int, known: int) -> Iterable[tuple[int, int | None]]:
        """For each size the hash of the n-gram before the token at ``index``, of whose text ``known`` tokens come before it."""
        for rank, size in enumerate(SIZES):
            yield rank, hash(tuple(self._tokens[index - size : index])) if size <= known else None

    def _matched(self, index: int, text: Sequence[int]) -> int:
        length, most = 0, min(index, len(text), LONGEST)
        while length < most and self._tokens[index - 1 - length] == text[-1 - length]:
            length += 1
        return length
