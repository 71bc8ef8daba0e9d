"""What happened to a service's requests: counted as it happens, read as a snapshot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from .request import Emission, Running
from .zero_acceptance import ZeroAcceptance


@dataclass(frozen=True)
class ServiceStats:
    """A snapshot. Counters only grow."""

    queued: int
    running: int
    """Holding a row: being read or decoding."""
    kv_used_tokens: int
    kv_capacity_tokens: int
    counters: Mapping[str, float]
    """What was asked for: ``requests`` (taken), ``rejected`` (impossible) and ``busy`` (no place for it). How the taken ended:
    ``completed``, ``cancelled``, ``timed_out``, ``failed``. ``prompt_tokens``, ``reused_tokens``, ``emitted_tokens``; ``drafts``,
    ``draft_tokens``, ``accepted_tokens``; ``rounds``; and, in seconds, ``queue_seconds``, ``prefill_seconds``, ``decode_seconds``."""
    accepted_by_position: Counter[int]
    draft_lens: Counter[int]
    """Tokens drafted → in how many rounds of a sequence."""
    zero_acceptance: Mapping[str, bool]
    """Method → whether none of its latest drafts had a token that was accepted."""
    turns: int
    """Of the service's thread. It takes them with and without work."""
    lossy: str | None = None
    """The rule that judges drafts though it changes the law of the output."""


class ServiceCounter:
    """Counts for a service, whose lock guards it."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)
        """As in ``ServiceStats.counters``."""
        self.turns = 0
        self._accepted_at: Counter[int] = Counter()
        self._draft_lens: Counter[int] = Counter()
        self._zero_acceptance = ZeroAcceptance()

    def taken(self, sequence: Running) -> None:
        """It stands in the queue."""
        self.sums["requests"] += 1
        self.sums["prompt_tokens"] += len(sequence.request.prompt)

    def admitted(self, sequence: Running, waited: float) -> None:
        """It has a row, after ``waited`` seconds."""
        self.sums["queue_seconds"] += waited
        self.sums["reused_tokens"] += sequence.counter.reused_tokens

    def emitted(self, sequence: Running, emission: Emission) -> None:
        """A round gave it ``emission``."""
        self.sums["emitted_tokens"] += len(emission.tokens)
        self.sums["drafts"] += emission.drafted > 0
        self.sums["draft_tokens"] += emission.drafted
        self.sums["accepted_tokens"] += emission.accepted
        self._draft_lens[emission.drafted] += 1
        self._accepted_at.update(range(emission.accepted))
        self._zero_acceptance.observe(sequence.request.method, emission.drafted, emission.accepted)
        if emission.finish_reason is not None:
            self.sums["completed"] += 1
            self.sums["prefill_seconds"] += sequence.counter.prefill_seconds
            self.sums["decode_seconds"] += sequence.counter.decode_seconds

    def freeze(self, *, queued: int, running: int, kv_used_tokens: int, kv_capacity_tokens: int, lossy: str | None = None) -> ServiceStats:
        """The figures as they stand, beside those that whoever counts has."""
        return ServiceStats(
            queued=queued,
            running=running,
            kv_used_tokens=kv_used_tokens,
            kv_capacity_tokens=kv_capacity_tokens,
            counters=dict(self.sums),
            accepted_by_position=Counter(self._accepted_at),
            draft_lens=Counter(self._draft_lens),
            zero_acceptance=self._zero_acceptance.spells(),
            turns=self.turns,
            lossy=lossy,
        )
