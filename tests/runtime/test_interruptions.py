"""A round that breaks off half-way: whatever was held is free, and the generator goes on as if it had never been."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from test_loop import assert_idle, caches
from toy_engine import Toys, toys

from specbuild.errors import CancelledError
from specbuild.runtime.kv import KvCache
from specbuild.runtime.model import CachedModel
from specbuild.runtime.proposers.draft_model import DraftModelProposer
from specbuild.runtime.request import Running
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.scheduler import Scheduler
from specbuild.runtime.verifier import Verifier

__all__ = ["toys"]
STAGES = [
    (Verifier, "admit"),
    (Verifier, "check"),
    (Verifier, "score"),
    (Verifier, "commit"),
    (Running, "judge"),
    (Running, "take"),
    (DraftModelProposer, "admit"),
    (DraftModelProposer, "propose"),
    (KvCache, "reserve"),
    (KvCache, "commit"),
    (KvCache, "adopt"),
    (CachedModel, "begin"),
    (CachedModel, "start"),
    (CachedModel, "prefill"),
    (CachedModel, "feed"),
    (Scheduler, "admit"),
    (Scheduler, "start"),
    (Scheduler, "plan"),
    (Verifier, "read"),
    (DraftModelProposer, "read"),
    (Verifier, "retire"),
    (DraftModelProposer, "retire"),
    (KvCache, "release"),
    (Scheduler, "forget"),
]


@pytest.mark.parametrize("interrupted", [1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "stage"), STAGES, ids=lambda value: getattr(value, "__name__", value))
def test_wherever_a_round_breaks_off_nothing_is_held_and_the_next_answer_is_right(
    toys: Toys, monkeypatch: pytest.MonkeyPatch, owner: type, stage: str, after: bool, interrupted: int
) -> None:
    """Two streams take turns; a stage is interrupted once. Both end, with what was right so far."""
    generator, params = toys.generator(), SamplingParams(seed=4, max_tokens=20, ignore_eos=True)
    prompts = [[1, 2, 1], [3, 4]]
    answers = [completion.token_ids for completion in generator.generate(prompts, params)]
    whole, calls = getattr(owner, stage), count(1)

    def breaking(*given: Any, **named: Any) -> Any:
        breaks = next(calls) == interrupted
        if breaks and not after:
            raise KeyboardInterrupt
        result = whole(*given, **named)
        if breaks:
            raise KeyboardInterrupt
        return result

    streams = dict(enumerate(generator.stream([prompt], params) for prompt in prompts))
    tokens: list[tuple[int, ...]] = [(), ()]
    ends: list[type[BaseException]] = []
    with monkeypatch.context() as patch:
        patch.setattr(owner, stage, breaking)
        while streams:
            for index in list(streams):
                try:
                    tokens[index] += next(streams[index]).tokens
                except (StopIteration, KeyboardInterrupt, CancelledError) as end:
                    ends.append(type(end))
                    if isinstance(end, StopIteration):
                        assert tokens[index] == answers[index]
                    del streams[index]
    assert ends.count(KeyboardInterrupt) == 1
    assert all(answer[: len(part)] == part for answer, part in zip(answers, tokens, strict=True))
    assert_idle(generator)
    for cache in caches(generator):
        cache.check()
    assert [completion.token_ids for completion in generator.generate(prompts, params)] == answers
