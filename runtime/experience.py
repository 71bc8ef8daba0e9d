"""What became of drafts so far, by what they rested on: of all of a method, and of each sequence that runs."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence

from .acceptance_record import Record, Records
from .calibration import Calibration, Outcome
from .draft import Draft, Shape
from .ground import Ground
from .request import Running

OWN_WEIGHT = 8.0
"""Observations that a method's rate stands for beside a sequence's own."""


class Experience:
    """Acceptance by depth, and of those that say how sure they are what that was worth."""

    def __init__(self, longest: int) -> None:
        """``longest``: tokens of a draft, at most."""
        self._longest = longest
        self._records = Records(longest)
        self._own: dict[tuple[Hashable, Ground], Record] = {}
        """Of chains of each sequence."""
        self._calibration = Calibration()
        self._outcomes: dict[tuple[str, Ground], Outcome] = {}
        self._own_outcomes: dict[tuple[Hashable, Ground], Outcome] = {}

    def keep(self, running: Container[Hashable]) -> None:
        """Forget sequences that have left."""
        self._own = {key: record for key, record in self._own.items() if key[0] in running}
        self._own_outcomes = {key: outcome for key, outcome in self._own_outcomes.items() if key[0] in running}

    def pass_by(self, shape: Shape) -> None:
        """See ``Records``."""
        self._records.pass_by(shape)

    def rates(self, sequence: Running, ground: Ground, shape: Shape) -> list[float]:
        """Acceptance by depth. A sequence's own record weighs more the longer it is; where trees are allowed it tells of neither kind."""
        rates = self._records.of(sequence.request.method, ground, shape).rates
        own = self._own.get((sequence.id, ground))
        if own is None or sequence.request.tree_budget:
            return rates
        for position, (accepted, reached) in enumerate(zip(own.accepted, own.reached, strict=True)):
            rates[position] = (accepted + OWN_WEIGHT * rates[position]) / (reached + OWN_WEIGHT)
        return rates

    def coverage(self, sequence: Running, ground: Ground, shape: Shape) -> float:
        """Share of rounds in which there is anything to draft."""
        return self._records.of(sequence.request.method, ground, shape).coverage

    def outcome(self, sequence: Running, ground: Ground) -> Outcome | None:
        """What drafting brought the sequence; None: its method has not said yet how sure it is."""
        of_method = self._outcomes.get((sequence.request.method, ground))
        return None if of_method is None else self._own_outcomes.setdefault((sequence.id, ground), Outcome(of_method))

    def chances(self, method: str, confidence: Sequence[float]) -> list[float]:
        """Acceptance of each token of a chain of which the method is so sure, if it is reached."""
        return [self._calibration.chance(method, place, one) for place, one in enumerate(confidence)]

    def going_on(self, method: str) -> float:
        """Acceptance of tokens that were drafted after others, if they are reached."""
        return self._calibration.going_on(method)

    def observe(self, sequence: Running, ground: Ground, asked: Shape, drafted: int, accepted: int, failed: bool) -> None:
        """What became of a draft of so many tokens; ``failed``: it went on after the accepted ones and was rejected there."""
        self._records.of(sequence.request.method, ground, asked).observe(drafted, accepted, failed)
        if not asked.branches:
            self._own.setdefault((sequence.id, ground), Record(self._longest)).observe(drafted, accepted, failed)

    def learn(self, sequence: Running, ground: Ground, draft: Draft, drafted: int, accepted: int, failed: bool) -> None:
        """The same of one that said how sure it was, and had ``drafted`` tokens before it was cut."""
        method = sequence.request.method
        of_method = self._outcomes.setdefault((method, ground), Outcome())
        for outcome in (of_method, self._own_outcomes.setdefault((sequence.id, ground), Outcome(of_method))):
            outcome.observe(drafted, len(draft), accepted)
        for place, confidence in enumerate((draft.confidence or ())[: accepted + failed]):
            self._calibration.observe(method, place, confidence, place < accepted)
