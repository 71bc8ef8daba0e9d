"""Keys and values of texts that were read before: a prompt that begins like one of them is not read again.

Whole texts are kept outside the cache's rows, as copies. Copying a token costs a hundredth of reading it, and rows stay what
passes need: dense, with a view as long as the longest that runs. (Rows kept in the cache would hold the view long for all;
blocks would need an attention that gathers, which neither compiler has.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORTEST = 32
"""Tokens below which reading is cheaper than remembering."""


@dataclass(frozen=True, eq=False)
class _Text:
    tokens: NDArray[np.int64]
    saved: Any
    """What ``KvStorage.save`` gave for them."""


class Prefixes:
    """At most ``budget`` tokens of texts; the least recently used goes first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._texts: OrderedDict[int, _Text] = OrderedDict()
        self._numbers = count()
        self._held = 0

    @property
    def held(self) -> int:
        """Tokens remembered."""
        return self._held

    def worth(self, length: int) -> bool:
        """Whether a text of ``length`` tokens is remembered at all."""
        return SHORTEST <= length <= self._budget

    def find(self, tokens: Sequence[int] | NDArray[np.int64]) -> tuple[Any, int]:
        """(what was saved of the text that begins most like ``tokens``, how many tokens they share); (None, 0) when too few."""
        wanted = np.array(tokens, np.int64)
        best, shared = max(
            ((number, common(text.tokens, wanted)) for number, text in self._texts.items()), key=itemgetter(1), default=(0, 0)
        )
        if shared < SHORTEST:
            return None, 0
        self._texts.move_to_end(best)
        return self._texts[best].saved, shared

    def knows(self, tokens: Sequence[int]) -> bool:
        """Whether a text begins with all of ``tokens``."""
        wanted = np.array(tokens, np.int64)
        return any(common(text.tokens, wanted) == len(wanted) for text in self._texts.values())

    def put(self, tokens: Sequence[int], saved: Any) -> None:
        """Remember ``tokens``; texts that they begin with are forgotten, being part of them."""
        new = np.array(tokens, np.int64)
        for number in [n for n, text in self._texts.items() if common(text.tokens, new) == len(text.tokens)]:
            self._forget(number)
        self._texts[next(self._numbers)] = _Text(new, saved)
        self._held += len(new)
        while self._held > self._budget:
            self._forget(next(iter(self._texts)))

    def _forget(self, number: int) -> None:
        self._held -= len(self._texts.pop(number).tokens)


def common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many first tokens two texts share."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length
