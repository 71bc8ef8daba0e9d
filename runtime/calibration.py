"""How often drafts that were so sure were right: a proposer's confidence, set right by what became of it."""

from __future__ import annotations

from .acceptance_record import DECAY, PRIOR_WEIGHT

LEVELS = 10
"""Of confidence that are told apart."""


class Calibration:
    """Decayed counts by method, by whether it was a draft's first token, and by level of confidence."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, bool, int], tuple[float, float]] = {}
        """(accepted, reached)"""

    def chance(self, method: str, place: int, confidence: float) -> float:
        """Chance that the token at ``place`` of a draft is accepted if it is reached. Before anything is known the proposer is believed."""
        accepted, reached = self._counts.get(self._key(method, place, confidence), (0.0, 0.0))
        return (accepted + PRIOR_WEIGHT * confidence) / (reached + PRIOR_WEIGHT)

    def observe(self, method: str, place: int, confidence: float, accepted: bool) -> None:
        """What became of one that was reached."""
        key = self._key(method, place, confidence)
        before, reached = self._counts.get(key, (0.0, 0.0))
        self._counts[key] = before * DECAY + accepted, reached * DECAY + 1

    def _key(self, method: str, place: int, confidence: float) -> tuple[str, bool, int]:
        return method, place == 0, min(LEVELS - 1, int(confidence * LEVELS))
