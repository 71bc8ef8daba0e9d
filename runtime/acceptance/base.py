"""What acceptance works with: where its randomness comes from, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..draft import Draft
from ..law import Law, draw
from ..noise import Stream, uniform
from ..transforms import LawAt


class Randomness(Protocol):
    """The choices of one round. ``depth`` counts tokens from the first that the round may emit."""

    def shared(self, law: Law, depth: int) -> int:
        """The one token of that place in the text, whoever asks, in whichever round."""
        ...

    def draft(self, law: Law, depth: int) -> int:
        """A token of this round's draft, independent of everything else."""
        ...

    def coin(self, probability: Any, depth: int) -> bool:
        """True with ``probability``, independent of everything else."""
        ...

    def tail(self, tokens: NDArray[np.int64], weights: NDArray[Any], depth: int) -> int:
        """One of ``tokens`` in proportion to ``weights``, independent of everything else."""
        ...


@dataclass(frozen=True)
class SeededRound:
    """The randomness of the round whose first token is at ``position`` of its sequence.

    Every round emits a token, so no two rounds start at one position. All but the shared noise is keyed by that start and
    the depth: keyed by the token's own position, a coin or a draft that one round has looked at (block verification looks
    ahead) would come again in the next and bias it.
    """

    seed: int
    position: int

    def shared(self, law: Law, depth: int) -> int:
        return draw(law, self.seed, self.position + depth, Stream.SHARED)

    def draft(self, law: Law, depth: int) -> int:
        return draw(law, self.seed, self.position, Stream.DRAFT, depth)

    def coin(self, probability: Any, depth: int) -> bool:
        return bool(uniform(self.seed, self.position, Stream.COIN, depth) <= probability)

    def tail(self, tokens: NDArray[np.int64], weights: NDArray[Any], depth: int) -> int:
        possible = weights > 0
        return draw(Law(tokens[possible], np.log(weights[possible])), self.seed, self.position, Stream.RESIDUAL, depth)


@dataclass(frozen=True)
class Verdict:
    """What a round emits, before stop conditions cut it."""

    accepted: tuple[int, ...]
    """Nodes of the draft on the accepted path, from the first token down."""
    tokens: tuple[int, ...]
    """Their tokens and the tail."""
    drafted: int
    """Tokens of the whole draft."""

    @classmethod
    def of(cls, draft: Draft, accepted: Sequence[int], tail: int) -> Verdict:
        return cls(tuple(accepted), (*(draft.tokens[node] for node in accepted), tail), len(draft))

    @property
    def tail(self) -> int:
        """The recovered or bonus token: the target's own after the accepted ones."""
        return self.tokens[-1]


@dataclass(frozen=True)
class Rule:
    """A lossless rule: how a proposer draws its tokens and how they are judged."""

    choose: Callable[[Law, Randomness, int], int]
    """(draft law, randomness, depth) → draft token."""
    judge: Callable[[LawAt, Draft, Randomness], Verdict]
    needs_laws: bool
    """Drafts that were drawn carry the laws that they were drawn from. Without one a token is judged as if it was the only one possible,
    which is exact too but keeps fewer."""
