"""Completions with made-up figures."""

from __future__ import annotations

from specbuild.runtime.generator import Completion
from specbuild.runtime.stats import RequestStats


def completion(
    tokens: tuple[int, ...] = (1, 2, 3, 4),
    *,
    seconds: float = 1.0,
    engine: float = 0.75,
    rounds: int = 2,
    rates: tuple[float, ...] = (),
    reached: tuple[int, ...] = (),
    lossy: str | None = None,
) -> Completion:
    """An answer of ``tokens`` that decoded for ``seconds``, ``engine`` of them inside engines, in ``rounds``."""
    stats = RequestStats(
        prompt_tokens=3,
        reused_tokens=0,
        emitted_tokens=len(tokens),
        num_spec_steps=rounds,
        num_draft_tokens=0,
        num_accepted_tokens=len(tokens) - rounds,
        mean_acceptance_length=len(tokens) / rounds,
        draft_acceptance_rate=0.0,
        acceptance_by_position=rates,
        reached_by_position=reached,
        prefill_seconds=5.0,
        decode_seconds=seconds,
        engine_seconds=engine,
        draft_seconds=0.0,
        tokens_per_second=len(tokens) / seconds,
        lossy=lossy,
    )
    return Completion("", tokens, "length", None, 0, (), stats)
