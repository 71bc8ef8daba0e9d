"""Rounds of the real, seeded acceptance over synthetic models, and the exact law of what they write."""

from __future__ import annotations

import runpy
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specbuild.runtime.acceptance import LOSSY, RULES, SeededRound, Verdict
from specbuild.runtime.context import Context
from specbuild.runtime.draft import ROOT, Draft
from specbuild.runtime.transforms import Transforms

Rows = NDArray[np.float32]
P_VALUE = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "laws.py"))["p_value"]
EVERY_RULE = {**RULES, **LOSSY}


@dataclass
class Markov:
    """A model whose logits depend on the last token."""

    table: Rows
    """[V, V]"""

    @classmethod
    def random(cls, seed: int, size: int = 5, spread: float = 1.2) -> Markov:
        return cls((np.random.default_rng(seed).standard_normal((size, size)) * spread).astype(np.float32))

    def rows(self, draft: Draft, context: Context) -> Rows:
        return self.table[[context.tokens[-1], *draft.tokens]]


def accept(rows: Rows, draft: Draft, transforms: Transforms, context: Context, seed: int, rule: str = "coupled") -> Verdict:
    """One round's verdict, all from its logits."""
    return RULES[rule].judge(transforms.laws(rows, draft, context), draft, SeededRound(seed, context.position))


@dataclass
class Decoding:
    """A loop of rounds over a Markov target and draft."""

    target: Markov
    proposer: Markov
    transforms: Transforms
    rule: str
    draft_len: int
    """Depth of a draft."""
    decided: Counter[int] = field(default_factory=Counter)
    """Accepted tokens of a round → rounds."""
    round_type: type[SeededRound] = SeededRound
    width: int = 1
    """Children of each node."""

    def draft(self, context: Context, seed: int) -> Draft:
        rule, randomness = EVERY_RULE[self.rule], self.round_type(seed, context.position)
        draft, level = Draft.EMPTY, [ROOT]
        for depth in range(self.draft_len):
            above, level = level, []
            for branch, node in enumerate(above):
                with context.after([draft.tokens[step] for step in draft.path(node)]):
                    law = self.transforms.draft_law(self.proposer.table[context.tokens[-1]], context, self.width)
                for token in rule.choose_children(law, randomness, depth, self.width, branch):
                    level.append(len(draft))
                    draft = Draft((*draft.tokens, token), (*draft.parents, node), (*(draft.laws or ()), law) if rule.needs_laws else None)
        return draft

    def text(self, seed: int, length: int) -> tuple[int, ...]:
        context = Context([0])
        while context.output_length < length:
            draft = self.draft(context, seed)
            laws = self.transforms.laws(self.target.rows(draft, context), draft, context)
            verdict = EVERY_RULE[self.rule].judge(laws, draft, self.round_type(seed, context.position))
            self.decided[len(verdict.accepted)] += 1
            for token in verdict.tokens:
                context.push(token)
        return tuple(context.tokens[1 : length + 1])


def law_of_text(target: Markov, transforms: Transforms, length: int) -> dict[tuple[int, ...], float]:
    """The exact law of the target's first ``length`` tokens."""
    law: dict[tuple[int, ...], float] = {}
    context = Context([0])

    def extend(text: tuple[int, ...], probability: float) -> None:
        if len(text) == length:
            law[text] = probability
            return
        with context.after(text):
            step = transforms.law(target.table[context.tokens[-1]], context)
        for token, p in zip(step.tokens.tolist(), step.p.tolist(), strict=True):
            extend((*text, token), probability * p)

    extend((), 1.0)
    return law


def g_test(texts: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """p-value of the likelihood-ratio test; texts expected fewer than 5 times share a cell."""
    seen = Counter(texts)
    assert seen.keys() <= law.keys(), "a text that the target never writes"
    common = [text for text in law if law[text] * len(texts) >= 5]
    observed = [seen[text] for text in common]
    expected = [law[text] * len(texts) for text in common]
    rest = len(texts) - sum(expected)
    if rest > 1:
        observed.append(len(texts) - sum(observed))
        expected.append(rest)
    return float(P_VALUE(observed, expected))
