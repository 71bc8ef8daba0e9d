"""Which candidate to take: names that are read rightly, and verdicts from made-up figures."""

from __future__ import annotations

import pytest
from completions import completion

from specbuild.bench.measure import Run, Variant
from specbuild.bench.ranking import Candidate, Choice, choose, ranked, together
from specbuild.bench.report import report
from specbuild.recipe import Recipe

SMALL, OWN = Candidate("hf:org/small", "int8"), Candidate(None, "int4")


@pytest.mark.parametrize(
    ("text", "candidate", "shown"),
    [
        ("hf:org/small@int8", SMALL, "hf:org/small@int8"),
        ("@int4", OWN, "@int4"),
        ("folder", Candidate("folder", "int4"), "folder@int4"),
        ("hf:org/small@main", Candidate("hf:org/small@main", "int4"), "hf:org/small@main@int4"),
        ("hf:org/small@main@int8", Candidate("hf:org/small@main", "int8"), "hf:org/small@main@int8"),
    ],
)
def test_a_candidate_is_a_checkpoint_and_perhaps_a_precision(text: str, candidate: Candidate, shown: str) -> None:
    assert Candidate.parse(text) == candidate
    assert str(candidate) == shown
    assert Candidate.parse(shown) == candidate


def test_the_bundle_has_the_target_and_the_candidates_and_no_other_drafts() -> None:
    given = {"draft": {}, "method": "hybrid", "hybrid_model": "eagle3", "heads": {"eagle3": {"checkpoint": "head"}}, "draft_len": 3}
    recipe = Recipe.model_validate({"name": "pair", "checkpoint": "here", "speculation": given})
    made = together(recipe, [SMALL, OWN])
    assert [(section.checkpoint, section.precision) for section in made.speculation.models.values()] == [
        ("hf:org/small", "int8"),
        (None, "int4"),
    ]
    assert (made.name, made.target, made.speculation.draft_len) == ("pair-rank", recipe.target, 3)
    assert not made.speculation.heads.present()


def choice(seconds: dict[str, tuple[float, ...]], tokens: tuple[int, ...] = (1, 2, 3, 4)) -> Choice:
    """Of methods that take so many seconds for each group; plain decoding takes one each."""
    groups = len(next(iter(seconds.values())))
    runs = [Run(Variant("off", 0, 1), n, None, (n,), (completion(rounds=4),)) for n in range(groups)]
    for method, times in seconds.items():
        runs += [Run(Variant(method, 4, 1), n, None, (n,), (completion(tokens, seconds=each),)) for n, each in enumerate(times)]
    return choose(report(runs), runs, [SMALL, OWN])


def test_the_fastest_is_taken_and_the_recipe_that_takes_it_is_said() -> None:
    assert choice({"ngram": (1, 1), str(SMALL): (0.5, 0.5), str(OWN): (0.8, 0.8)}) == Choice(
        Variant("hf:org/small@int8", 4, 1),
        "take hf:org/small@int8 with draft_len 4: τ 2.00, 2.00 times the tokens/s of plain decoding (2.00 to 2.00); set "
        "speculation.method=draft_model, speculation.draft.checkpoint=hf:org/small, speculation.draft.precision=int8",
    )
    own = choice({"ngram": (1, 1), str(SMALL): (0.9, 0.9), str(OWN): (0.8, 0.8)})
    assert own.verdict.endswith("; set speculation.method=draft_model, speculation.draft.precision=int4")


def test_none_is_taken_that_does_not_surely_beat_plain_decoding() -> None:
    slow = choice({"ngram": (1.1, 1.1), str(SMALL): (1.2, 1.2), str(OWN): (0.2, 1.9)})
    assert slow == Choice(None, "take none: no candidate surely beats plain decoding; nor does prompt lookup")
    lookup = choice({"ngram": (0.8, 0.8), str(SMALL): (1.2, 1.2)})
    assert lookup.variant is None
    assert lookup.verdict.endswith(
        "; ngram with draft_len 4, which needs no model, does: 1.25 times the tokens/s of plain decoding (1.25 to 1.25)"
    )
    assert choice({str(SMALL): (0.5, 0.5)}, tokens=(7, 7, 7, 7)).variant is None, "what differs is not taken"


def test_none_is_taken_that_does_not_surely_beat_prompt_lookup() -> None:
    close = choice({"ngram": (0.5, 0.5), str(SMALL): (0.4, 0.55)})
    assert close == Choice(
        None,
        "take none: the best candidate, hf:org/small@int8 with draft_len 4, does not surely beat ngram with draft_len 4, "
        "which needs no model: 0.91 to 1.25 times its tokens/s",
    )
    assert choice({"ngram": (0.5, 0.5), str(SMALL): (0.4, 0.45)}).variant == Variant(str(SMALL), 4, 1)


def test_the_fastest_row_comes_first() -> None:
    runs = [Run(Variant(method, 4 * (method != "off"), 1), 0, "a", (0,), (completion(seconds=s),)) for method, s in SPEEDS.items()]
    assert [(row.variant.method, row.task) for row in ranked(report(runs))] == [("b", "all"), ("off", "all"), ("c", "all")]


SPEEDS = {"off": 1.0, "b": 0.5, "c": 2.0}
