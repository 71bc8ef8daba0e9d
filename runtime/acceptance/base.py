"""What acceptance works with: where its randomness comes from, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..draft import Draft
from ..law import Law, draw, draw_several
from ..noise import Stream, gumbel, uniform
from ..transforms import LawAt


class Randomness(Protocol):
    """The choices of one round. ``depth`` counts tokens from the first that the round may emit."""

    def shared(self, law: Law, depth: int) -> int:
        """The one token of that place in the text, whoever asks, in whichever round."""
        ...

    def guesses(self, law: Law, depth: int, count: int) -> tuple[int, ...]:
        """What ``shared`` may be, as far as ``law`` is the target's: the ``count`` tokens best placed by its noise, the best first."""
        ...

    def noise(self, tokens: Sequence[int], depth: int) -> NDArray[np.float64]:
        """[n] that of ``shared`` and ``guesses``: what they add to each token's score."""
        ...

    def draft(self, law: Law, depth: int, count: int, branch: int) -> tuple[int, ...]:
        """``count`` tokens of this round's draft, drawn one after the other without replacement, independent of everything else:
        of the draws of the other branches of that depth too."""
        ...

    def coin(self, probability: Any, node: int) -> bool:
        """True with ``probability``: what is decided of one node of the draft, independent of everything else."""
        ...

    def tail(self, tokens: NDArray[np.int64], weights: NDArray[Any], depth: int) -> int:
        """One of ``tokens`` in proportion to ``weights``, independent of everything else."""
        ...


@dataclass(frozen=True)
class SeededRound:
    """The randomness of the round whose first token is at ``position`` of its sequence.

    Every round emits a token, so no two rounds start at one position. All but the shared noise is keyed by that start and
    the depth: keyed by the token's own position, a coin or a draft that one round has looked at (block verification looks
    ahead) would come again in the next and bias it. For the same reason draws are keyed by the branch too, and coins by the
    node: traversal looks at one node's children before it judges its sibling, whose children must know nothing of them.
    """

    seed: int
    position: int

    def shared(self, law: Law, depth: int) -> int:
        return draw(law, self.seed, self.position + depth, Stream.SHARED)

    def guesses(self, law: Law, depth: int, count: int) -> tuple[int, ...]:
        return draw_several(law, count, self.seed, self.position + depth, Stream.SHARED)

    def noise(self, tokens: Sequence[int], depth: int) -> NDArray[np.float64]:
        noise: NDArray[np.float64] = gumbel(self.seed, self.position + depth, np.array(tokens), Stream.SHARED)
        return noise

    def draft(self, law: Law, depth: int, count: int, branch: int) -> tuple[int, ...]:
        return draw_several(law, count, self.seed, self.position, Stream.DRAFT, depth + (branch << 32))

    def coin(self, probability: Any, node: int) -> bool:
        return bool(uniform(self.seed, self.position, Stream.COIN, node) <= probability)

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
    """How a proposer chooses its tokens and how they are judged."""

    choose_children: Callable[[Law, Randomness, int, int, int], tuple[int, ...]]
    """(draft law, randomness, depth, count, branch) → ``count`` tokens to follow one node, or as many as the law has, the first
    choice first. ``branch`` tells apart the nodes of one depth that get children: each has a number of its own."""
    judge: Callable[[LawAt, Draft, Randomness], Verdict]
    needs_laws: bool
    """Drafts that were drawn carry the laws that they were drawn from. Without one a token is judged as if it was the only one possible,
    which is exact too but keeps fewer."""
    trees: bool = True
    """Whether it judges more than chains."""
    foreseen: bool = False
    """The target's token is the best by its scores and the shared noise, which a proposer knows."""

    def choose(self, law: Law, randomness: Randomness, depth: int) -> int:
        """The next token of a chain."""
        return self.choose_children(law, randomness, depth, 1, 0)[0]
