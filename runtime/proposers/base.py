"""What every proposer is: sequences and how many tokens are asked for go in, drafts come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ..draft import Draft
from ..request import Running


@dataclass(frozen=True)
class Ask:
    """At most ``draft_len`` tokens wanted after the last token of ``sequence``."""

    sequence: Running
    draft_len: int


class Proposer(ABC):
    """Drafts for sequences between ``admit`` and ``retire``. Whatever it drafts, the output's law is the target's.

    To be inherited: a proposer that keeps nothing of its sequences has only to propose.
    """

    @property
    def engine_seconds(self) -> float:
        """Time spent so far in engine passes of its own."""
        return 0.0

    def admit(self, sequence: Running) -> None:
        """A sequence joins; its tokens are its prompt's. Another joins when this one's prompt has been read."""

    def read(self, sequence: Running, length: int) -> None:
        """The target has read the first ``length`` prompt tokens: time to read as far."""

    def start(self, sequence: Running) -> None:
        """The target has read the whole prompt: drafts are asked for from now on."""

    @abstractmethod
    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """A draft for each of ``asks``, in order; an empty one where there is nothing to propose.

        A token that comes from a law of the proposer's own is chosen by ``sequence.rule.choose``, and where that rule needs
        them the draft carries the laws. A token once chosen is never left out for looking unlikely: that would bias the text.
        """

    def retire(self, sequence: Running) -> None:
        """A sequence leaves, even one whose ``admit`` was interrupted or never came."""
