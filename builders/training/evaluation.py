"""How far a head's drafts hold on texts that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .batches import Batch


@dataclass(frozen=True)
class Acceptance:
    """Greedy drafts against the texts."""

    tau: float
    """Tokens a target pass, drafting as many tokens as were looked at, on each text from its first learned token on."""
    by_step: tuple[float, ...]
    """Share of drafts that hold at each step, of those that held before it."""

    def __str__(self) -> str:
        return f"τ {self.tau:.2f} ({' '.join(f'{share:.2f}' for share in self.by_step)})"


@dataclass
class Tally:
    """Adds up batches."""

    emitted: int = 0
    rounds: int = 0
    reached: Tensor | None = None
    held: Tensor | None = None

    def add(self, batch: Batch, hits: Tensor) -> None:
        """``hits`` [steps,B,T] bool: the draft made j steps on from base t is the text's token t + 2 + j."""
        before = torch.cat([torch.ones_like(hits[:1]), hits[:-1].cumprod(0).bool()])
        counted = torch.stack([_shifted(batch.learned, 2 + step) for step in range(len(hits))])
        reached, held = (before & counted).sum((1, 2)), (before & counted & hits).sum((1, 2))
        self.reached = reached if self.reached is None else self.reached + reached
        self.held = held if self.held is None else self.held + held
        accepted = hits.cumprod(0).sum(0)
        for learned, lengths in zip(batch.learned, accepted, strict=True):
            emitted, rounds = _walk(learned.nonzero()[:, 0].tolist(), lengths.tolist())
            self.emitted, self.rounds = self.emitted + emitted, self.rounds + rounds

    def result(self) -> Acceptance:
        assert self.reached is not None, "nothing was added"
        assert self.held is not None, "nothing was added"
        shares = (self.held / self.reached.clamp(min=1)).tolist()
        return Acceptance(self.emitted / max(1, self.rounds), tuple(shares))


def _shifted(learned: Tensor, ahead: int) -> Tensor:
    """[B,T] at t: whether t + ahead is learned."""
    return torch.cat([learned[:, ahead:], learned.new_zeros(len(learned), min(ahead, learned.shape[1]))], 1)[:, : learned.shape[1]]


def _walk(learned: list[int], accepted: list[int]) -> tuple[int, int]:
    """(tokens, rounds) of decoding a text: each round drafts behind the last token that there is, and one more is the target's own."""
    emitted = rounds = 0
    wanted = set(learned)
    for position in learned:
        if position - 1 in wanted:
            continue
        # The first draft is made before the answer has begun; one needs the features of a position and the token after it.
        last = max(position - 1, 1)
        while last + 1 in wanted:
            gained = min(accepted[last - 1] + 1, _run(wanted, last))
            emitted, rounds, last = emitted + gained, rounds + 1, last + gained
    return emitted, rounds


def _run(wanted: set[int], last: int) -> int:
    """How many tokens follow ``last`` without a gap."""
    count = 0
    while last + count + 1 in wanted and count < 64:
        count += 1
    return count
