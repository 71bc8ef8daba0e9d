"""What a draft rests on: drafts that rest on the like are accepted alike, and cost alike."""

from __future__ import annotations

from dataclasses import dataclass

STEPS = (1, 2, 3, 4, 8)
"""Lengths of a match from which another acceptance is to be expected."""


@dataclass(frozen=True)
class Ground:
    """Of one draft."""

    copied: bool = False
    """From earlier text, without an engine's pass."""
    match: int = 0
    """Tokens of the text's end that were found there, rounded down to one of ``STEPS``."""


TORN = Ground(True, 0)
"""A copy of one of several continuations that differ."""


def copied(match: int) -> Ground | None:
    """The ground of a copy after a match of so many tokens; None for none: there is nothing to draft."""
    return Ground(True, max(step for step in STEPS if step <= match)) if match else None
