"""Drafts that say how sure they are: how often those so sure were right, and what drafting with cuts brings and costs on the whole."""

from __future__ import annotations

from collections.abc import Iterator

from .acceptance_record import DECAY, PRIOR, PRIOR_WEIGHT

LIKE_OTHERS = 8.0
"""Rounds that a method's outcome stands for beside a sequence's own."""
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

    def going_on(self, method: str) -> float:
        """Chance that a token is accepted that was drafted after others, if it is reached."""
        counts = [self._counts.get((method, False, level), (0.0, 0.0)) for level in range(LEVELS)]
        accepted, reached = sum(count[0] for count in counts), sum(count[1] for count in counts)
        return (accepted + PRIOR_WEIGHT * PRIOR) / (reached + PRIOR_WEIGHT)

    def observe(self, method: str, place: int, confidence: float, accepted: bool) -> None:
        """What became of one that was reached."""
        key = self._key(method, place, confidence)
        before, reached = self._counts.get(key, (0.0, 0.0))
        self._counts[key] = before * DECAY + accepted, reached * DECAY + 1

    def _key(self, method: str, place: int, confidence: float) -> tuple[str, bool, int]:
        return method, place == 0, min(LEVELS - 1, int(confidence * LEVELS))


class Outcome:
    """Decayed means over rounds in which one method drafted as far as it was sure, and the draft was cut."""

    def __init__(self, others: Outcome | None = None) -> None:
        """At first like ``others``, as if seen for ``LIKE_OTHERS`` rounds. Without them hopeful: one token of two was kept."""
        self.seen = 0
        """Rounds."""
        self._rounds = PRIOR_WEIGHT if others is None else LIKE_OTHERS
        self._accepted = self._rounds * (2 * PRIOR if others is None else others.accepted)
        self._drafted = self._rounds * (2 if others is None else others.drafted)
        self._verified = {length: self._rounds * share for length, share in ([(2, 1.0)] if others is None else others.verified())}

    def observe(self, drafted: int, verified: int, accepted: int) -> None:
        """Tokens of a draft, those that were left of it, and those that were accepted."""
        self.seen += 1
        self._rounds = self._rounds * DECAY + 1
        self._accepted = self._accepted * DECAY + accepted
        self._drafted = self._drafted * DECAY + drafted
        self._verified = {length: count * DECAY for length, count in self._verified.items()}
        self._verified[verified] = self._verified.get(verified, 0.0) + 1

    @property
    def accepted(self) -> float:
        """Tokens a round."""
        return self._accepted / self._rounds

    @property
    def drafted(self) -> float:
        """Tokens a round."""
        return self._drafted / self._rounds

    def verified(self) -> Iterator[tuple[int, float]]:
        """(tokens left of a draft, in what share of rounds)"""
        return ((length, count / self._rounds) for length, count in self._verified.items())
