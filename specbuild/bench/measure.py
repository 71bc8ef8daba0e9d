"""Measures methods against each other: every group of prompts is answered by all of them in turn, within seconds of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from specbuild.runtime.generator import Completion
from specbuild.runtime.sampling import SamplingParams

OFF = "off"
WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Variant:
    """One way to generate."""

    method: str
    draft_len: int | None
    """Draft tokens a round; 0 for ``off``, None: chosen round by round, as a server does."""
    batch: int
    """Prompts that are answered together."""
    tree_budget: int | None = None
    """Tokens of a draft's whole tree, at most; 0: chains; None: as the recipe says."""

    def params(self, common: SamplingParams) -> SamplingParams:
        """``common`` with this variant's speculation, from the text alone: prompts are answered again and again."""
        return dataclasses.replace(
            common, speculation=self.method, draft_len=self.draft_len or None, tree_budget=self.tree_budget, share_history=False
        )

    @property
    def asked(self) -> str:
        """``draft_len`` as ``specbuild bench`` takes it."""
        return "auto" if self.draft_len is None else str(self.draft_len)

    def __str__(self) -> str:
        tree = f" and tree_budget {self.tree_budget}" if self.tree_budget else ""
        return OFF if self.method == OFF else f"{self.method} with draft_len {self.asked}{tree}"


@dataclass(frozen=True)
class Case:
    """One prompt."""

    tokens: tuple[int, ...]
    task: str | None


@dataclass(frozen=True)
class Run:
    """A group of cases, answered together by one variant."""

    variant: Variant
    group: int
    """Runs of the same batch and group are a pair: the same cases."""
    task: str | None
    cases: tuple[int, ...]
    """Which of all cases, one for each completion."""
    completions: tuple[Completion, ...]

    @property
    def tokens(self) -> int:
        """Emitted by the group."""
        return sum(completion.stats.emitted_tokens for completion in self.completions)

    @property
    def decode_seconds(self) -> float:
        """Wall time of the group: all begin together, the slowest is the last."""
        return self._slowest.stats.decode_seconds

    @property
    def engine_seconds(self) -> float:
        """Of it: inside engine passes."""
        return self._slowest.stats.engine_seconds

    @property
    def _slowest(self) -> Completion:
        return max(self.completions, key=lambda completion: completion.stats.decode_seconds)


class Generates(Protocol):
    """What of ``specbuild.runtime.generator.Generator`` is used here."""

    def generate(self, prompts: Sequence[tuple[int, ...]], params: SamplingParams) -> list[Completion]:
        """An answer to each prompt, in order; all begin together."""
        ...


def variants(
    methods: Iterable[str], draft_lens: Iterable[int | None], batch: int, tree_budgets: Iterable[int | None] = (None,)
) -> list[Variant]:
    """Every method with every draft length and every tree; ``off`` is always among them and comes first."""
    drafting = [method for method in methods if method != OFF]
    alternatives = dict.fromkeys(product(drafting, draft_lens, [batch], tree_budgets))
    return [Variant(OFF, 0, batch), *(Variant(*alternative) for alternative in alternatives)]


def groups(cases: Sequence[Case], batch: int) -> list[tuple[int, ...]]:
    """Cases of one task, ``batch`` at a time; a task's last group is filled up with its first cases, so that every group is whole."""
    by_task: dict[str | None, list[int]] = {}
    for index, case in enumerate(cases):
        by_task.setdefault(case.task, []).append(index)
    return [
        tuple(members[place % len(members)] for place in range(start, start + batch))
        for members in by_task.values()
        for start in range(0, len(members), batch)
    ]


def measure(
    open_generator: Callable[[int], Generates],
    cases: Sequence[Case],
    plan: Sequence[Sequence[Variant]],
    params: SamplingParams,
    progress: Callable[[str], None] = lambda message: None,
) -> list[Run]:
    """Every case by every variant.

    Args:
        open_generator: Batch → a generator that answers so many prompts together.
        plan: The variants of each batch. They take turns group by group, and who begins moves on by one each time:
            whatever drifts on the machine meets all of them alike. Each is warmed up before anything is counted.
        params: Common to all, with a seed: the answers are to be the same.
    """
    assert params.seed is not None or params.temperature == 0, "without a seed no two answers can be the same"
    runs: list[Run] = []
    for alternatives in plan:
        batch = alternatives[0].batch
        assert all(variant.batch == batch for variant in alternatives)
        generator = open_generator(batch)
        grouped = groups(cases, batch)
        for variant in alternatives:
            progress(f"batch {batch}: warming up {variant}")
            _answer(generator, cases, grouped[0], _shortened(variant.params(params)))
        for number, members in enumerate(grouped):
            progress(f"batch {batch}: group {number + 1} of {len(grouped)}")
            first = number % len(alternatives)
            for variant in (*alternatives[first:], *alternatives[:first]):
                completions = _answer(generator, cases, members, variant.params(params))
                runs.append(Run(variant, number, cases[members[0]].task, members, tuple(completions)))
    return runs


def _answer(generator: Generates, cases: Sequence[Case], members: Sequence[int], params: SamplingParams) -> list[Completion]:
    return generator.generate([cases[index].tokens for index in members], params)


def _shortened(params: SamplingParams) -> SamplingParams:
    tokens = min(params.max_tokens, WARM_UP_TOKENS)
    return dataclasses.replace(params, max_tokens=tokens, min_tokens=min(params.min_tokens, tokens))
