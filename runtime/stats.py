"""What happened to a request, counted in emitted tokens only: a draft token past a stop is not "accepted"."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RequestStats:
    """Figures of one finished (or running) request."""

    prompt_tokens: int
    reused_tokens: int
    """Of them: remembered from other requests, not read."""
    emitted_tokens: int
    num_spec_steps: int
    """Rounds: target passes that decoded for this request."""
    num_draft_tokens: int
    num_accepted_tokens: int
    mean_acceptance_length: float
    """τ: emitted tokens a target pass, tail included."""
    draft_acceptance_rate: float
    """Accepted / drafted; 0 when nothing was drafted."""
    acceptance_by_position: tuple[float, ...]
    """Conditional: accepted at i / drafts that reached i."""
    reached_by_position: tuple[int, ...]
    """Drafts that reached i: what weighs a rate when those of several requests are averaged."""
    prefill_seconds: float
    decode_seconds: float
    engine_seconds: float
    """Of decode: inside engine passes, target's and draft's."""
    draft_seconds: float
    """Of decode: proposing, engine passes of the draft included."""
    tokens_per_second: float
    """Emitted tokens / decode seconds."""
    lossy: str | None
    """The rule that kept draft tokens though it changes the law of the output; None: the law is the target's."""


@dataclass
class RequestCounter:
    """Counts one request's rounds. Times of a round that it shared with others count in full: it waited for them."""

    prompt_tokens: int
    lossy: str | None = None
    reused_tokens: int = 0
    emitted: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    reached_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    engine_seconds: float = 0.0
    draft_seconds: float = 0.0

    def observe(self, *, emitted: int, drafted: int, accepted: int, failed: bool) -> None:
        """A round that drafted ``drafted`` tokens, emitted ``emitted`` and, among them, ``accepted`` draft tokens.

        Position i was reached when everything before it was accepted and emitted. ``failed``: the draft went on after the accepted
        tokens, and what it had there was rejected; a draft that was kept whole, or that a stop cut short, did not fail.
        """
        self.rounds += 1
        self.emitted += emitted
        self.drafted += drafted
        self.accepted += accepted
        reached = accepted + failed
        while len(self.reached_at) < reached:
            self.reached_at.append(0)
            self.accepted_at.append(0)
        for position in range(reached):
            self.reached_at[position] += 1
            self.accepted_at[position] += position < accepted

    def freeze(self) -> RequestStats:
        """The figures as they stand."""
        return RequestStats(
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            emitted_tokens=self.emitted,
            num_spec_steps=self.rounds,
            num_draft_tokens=self.drafted,
            num_accepted_tokens=self.accepted,
            mean_acceptance_length=self.emitted / self.rounds if self.rounds else 0.0,
            draft_acceptance_rate=self.accepted / self.drafted if self.drafted else 0.0,
            acceptance_by_position=tuple(a / r for a, r in zip(self.accepted_at, self.reached_at, strict=True)),
            reached_by_position=tuple(self.reached_at),
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            engine_seconds=self.engine_seconds,
            draft_seconds=self.draft_seconds,
            tokens_per_second=self.emitted / self.decode_seconds if self.decode_seconds else 0.0,
            lossy=self.lossy,
        )
