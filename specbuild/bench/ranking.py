"""Candidates for the draft model of a target: which can draft at all, and which of them, if any, is worth taking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from specbuild.builders.preparation import prepare
from specbuild.bundle import Bundle
from specbuild.errors import SpecbuildError
from specbuild.recipe import DraftSection, DraftVocabulary, Precision, Recipe, SpeculationSection, draft_role
from specbuild.runtime.proposers import Means, Proposers
from specbuild.runtime.proposers.base import Proposer

from .measure import Run, Variant
from .report import ALL, Row, paying, spread

LOOKUP = "ngram"
"""What a candidate has to beat besides plain decoding: it needs no model."""


@dataclass(frozen=True)
class Candidate:
    """A checkpoint at a precision."""

    checkpoint: str | None
    """None: the target's own."""
    precision: Precision
    vocabulary: DraftVocabulary = "same"

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """``REF``, ``REF@PRECISION``, or ``@PRECISION`` for the target's own checkpoint. What follows an @ and is no precision is REF's."""
        reference, _, precision = text.rpartition("@")
        if precision not in get_args(Precision):
            reference, precision = text, DraftSection().precision
        return cls(reference or None, precision)  # type: ignore[arg-type]  # one of them

    def __str__(self) -> str:
        """As ``parse`` takes it; the @ keeps it apart from the methods' names."""
        return f"{self.checkpoint or ''}@{self.precision}"

    @property
    def settings(self) -> str:
        """What a recipe has to say to draft with it."""
        keys = {"method": "draft_model", "draft.checkpoint": self.checkpoint, "draft.precision": self.precision}
        keys["draft.vocabulary"] = self.vocabulary if self.vocabulary != DraftSection().vocabulary else None
        return ", ".join(f"speculation.{key}={value}" for key, value in keys.items() if value)


@dataclass(frozen=True)
class Choice:
    """What the figures say."""

    variant: Variant | None
    """The candidate to take, by its text, and its draft length; None: none of them."""
    verdict: str


def screened(recipe: Recipe, candidates: Sequence[Candidate]) -> dict[Candidate, str | None]:
    """Candidate → why it cannot draft for the target of ``recipe``, None if it can: with its own vocabulary, where that differs. Each is
    checked alone: it ends no other.

    Raises:
        SpecbuildError: the target itself cannot be built.
    """
    prepare(_recipe(recipe, {}))
    found: dict[Candidate, str | None] = {}
    for candidate in candidates:
        refusal, translated = _refusal(recipe, candidate), replace(candidate, vocabulary="own")
        if refusal is not None and _refusal(recipe, translated) is None:
            candidate, refusal = translated, None
        found[candidate] = refusal
    return found


def together(recipe: Recipe, candidates: Sequence[Candidate]) -> Recipe:
    """The recipe of one bundle with the target and every candidate: all can be measured in one run."""
    sections = {name: _section(candidate) for name, candidate in _names(candidates).items()}
    return _recipe(recipe, {"drafts": sections})


def proposers(bundle: Bundle, candidates: Sequence[Candidate], rows: int, threads: int | None) -> dict[str, Proposer]:
    """The text of each candidate → what drafts with it, in the bundle of ``together``."""
    return {str(candidate): drafting(bundle, name, rows, threads) for name, candidate in _names(candidates).items()}


def drafting(bundle: Bundle, name: str, rows: int, threads: int | None) -> Proposer:
    """What drafts with the model that the recipe of ``bundle`` calls ``name``, and with no other."""
    return Proposers(bundle, Means(rows, threads), {}).drafter(draft_role(name))


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The rows over all tasks, the fastest first."""
    return sorted((row for row in rows if row.task == ALL), key=lambda row: -row.speedup)


def choose(rows: Sequence[Row], runs: Sequence[Run], candidates: Sequence[Candidate]) -> Choice:
    """The fastest candidate, if it surely beats plain decoding and, where that pays too, prompt lookup; else none.

    A ratio is sure when all of its spread is above 1.
    """
    by_text = {str(candidate): candidate for candidate in candidates}
    fast = [row for row in ranked(rows) if paying(row)]
    best = next((row for row in fast if row.variant.method in by_text), None)
    lookup = next((row for row in fast if row.variant.method == LOOKUP), None)
    if best is None:
        instead = f"{lookup.variant}, which needs no model, does: {_gain(lookup)}" if lookup else "nor does prompt lookup"
        return Choice(None, f"take none: no candidate surely beats plain decoding; {instead}")
    if lookup is not None:
        low, high = against(runs, best.variant, lookup.variant)
        if low <= 1:
            gain = f"{lookup.variant}, which needs no model: {low:.2f} to {high:.2f} times its tokens/s"
            return Choice(None, f"take none: the best candidate, {best.variant}, does not surely beat {gain}")
    lossy = f", lossy ({best.lossy})" if best.lossy else ""
    said = f"take {best.variant}: τ {best.mean_acceptance_length:.2f}, {_gain(best)}{lossy}"
    return Choice(best.variant, f"{said}; set {by_text[best.variant.method].settings}")


def _gain(row: Row) -> str:
    return f"{row.speedup:.2f} times the tokens/s of plain decoding ({row.speedup_low:.2f} to {row.speedup_high:.2f})"


def against(runs: Sequence[Run], one: Variant, other: Variant) -> tuple[float, float]:
    """Spread of the ratio of two variants' tokens/s."""
    ours, theirs = ({run.group: run for run in runs if run.variant == variant} for variant in (one, other))
    pairs = [(ours[group], theirs[group]) for group in ours]
    return spread(
        [run.tokens for run, _ in pairs],
        [run.decode_seconds for run, _ in pairs],
        [run.tokens for _, run in pairs],
        [run.decode_seconds for _, run in pairs],
    )


def _refusal(recipe: Recipe, candidate: Candidate) -> str | None:
    try:
        prepare(_recipe(recipe, {"draft": _section(candidate)}))
    except SpecbuildError as error:
        return str(error)
    return None


def _names(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    """What a recipe calls each."""
    return {f"candidate-{number}": candidate for number, candidate in enumerate(candidates, 1)}


def _section(candidate: Candidate) -> dict[str, Any]:
    return DraftSection(checkpoint=candidate.checkpoint, precision=candidate.precision, vocabulary=candidate.vocabulary).model_dump()


def _recipe(recipe: Recipe, drafts: Mapping[str, Any]) -> Recipe:
    """``recipe`` with nothing that drafts but ``drafts`` and prompt lookup, under a name of its own."""
    bare = recipe.speculation.model_dump(exclude={"draft", "drafts", "cascade", "merged", "heads"})
    speculation = SpeculationSection(**bare | {"method": LOOKUP, **drafts})
    return recipe.model_copy(update={"name": f"{recipe.name}-rank", "speculation": speculation})
