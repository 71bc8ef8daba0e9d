"""Drafts of which nothing is accepted: a draft model that does not fit its target costs time and changes nothing that anybody sees."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

log = logging.getLogger(__name__)
SPELL = 128
"""Drafts in a row without an accepted token that are no chance: where one in twenty has one, 0.14 % of such rows have none."""


class ZeroAcceptance:
    """Watches each method's drafts and warns once a spell; the first accepted token ends it."""

    def __init__(self) -> None:
        self._in_a_row: Counter[str] = Counter()

    def observe(self, method: str, drafted: int, accepted: int) -> None:
        """What became of a draft; an empty one says nothing."""
        if accepted:
            self._in_a_row[method] = 0
        elif drafted:
            self._in_a_row[method] += 1
            if self._in_a_row[method] == SPELL:
                log.warning(
                    "speculation method %s: none of its last %d drafts had a token that was accepted; draft and target may not fit, or the "
                    "temperature is too high: `specbuild bench` measures what each method brings, `off` spares the cost",
                    method,
                    SPELL,
                )

    def spells(self) -> Mapping[str, bool]:
        """Of each method that has drafted, whether it is in a spell."""
        return {method: count >= SPELL for method, count in self._in_a_row.items()}
