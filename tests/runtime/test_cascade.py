"""Cascades: a model with an inner proposer drafts exactly what it drafts alone, in fewer passes; three models in a round keep the law."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import plainly
from toy_engine import EOS, VOCABULARY, ToyEngine, ToyModel, Toys, toy_entry, toys

from specbuild.recipe import SpeculationSection
from specbuild.runtime.context import Context
from specbuild.runtime.draft import Draft
from specbuild.runtime.law import Law
from specbuild.runtime.model import CachedModel
from specbuild.runtime.proposers.base import Ask, Proposer
from specbuild.runtime.proposers.draft_model import DraftModelProposer
from specbuild.runtime.proposers.ngram import NgramProposer
from specbuild.runtime.request import Request, Running
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms

__all__ = ["toys"]
LAWS = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "laws.py"))
SMALL, MIDDLE = ToyModel(influence=0.4, padding=9), ToyModel(influence=0.8, padding=2)
PROMPT = [1, 2, 3]


class Branchy(Proposer):
    """Trees with the small model's own token among others: what a head with a tree would draft for the next model."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self.tree(ask) for ask in asks]

    def tree(self, ask: Ask) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        sequence, likely, node = ask.sequence, -1, -1
        for depth in range((ask.draft_len + 1) // 2):
            path = [tokens[step] for step in Draft(tuple(tokens), tuple(parents)).path(node)]
            with sequence.context.after((*ask.after, *path)):
                law = sequence.transforms.law(SMALL.after(sequence.tokens), sequence.context)
            likely = sequence.rule.choose(law, sequence.randomness, len(ask.after) + depth)
            children = [(likely + 1) % VOCABULARY, likely][: ask.draft_len - len(tokens)]
            parents += [node] * len(children)
            tokens += children
            node = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents))


def running(toys: Toys, prompt: Sequence[int], owner: int, rule: str, **options: Any) -> Running:
    params = SamplingParams(**{"seed": 7, **options})
    return Running(Request(owner, tuple(prompt), params, 7, "any", 4), rule, toys.generator().tokenizer, VOCABULARY, (EOS,))


def model(shape: ToyModel, rows: int = 3, **changes: Any) -> CachedModel:
    return CachedModel(ToyEngine(shape, toy_entry("draft", shape, **changes)), rows)


def inner(kind: str) -> Proposer | None:
    proposers: dict[str, Proposer | None] = {
        "nothing": None,
        "ngram": NgramProposer(1, 3),
        "small": DraftModelProposer(model(SMALL)),
        "ngram, small": DraftModelProposer(model(SMALL), NgramProposer(1, 3)),
        "twin": DraftModelProposer(model(MIDDLE)),
        "tree": Branchy(),
    }
    return proposers[kind]


PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 2.0, "bad_words": [[3, 4], [5, 5]]}


@pytest.mark.parametrize(("kind", "whole"), [("nothing", False), ("ngram", False), ("small", True), ("ngram, small", True)])
def test_a_model_that_another_drafts_for_is_not_stopped_where_it_is_unsure(toys: Toys, kind: str, whole: bool) -> None:
    """The passes of the other are spent by then; its drafts are as long as was asked for, and say nothing of how sure they are."""
    proposer, sequence = DraftModelProposer(model(MIDDLE), inner(kind)), running(toys, PROMPT, 0, "coupled")
    proposer.admit(sequence)
    proposer.read(sequence, len(PROMPT) - 1)
    proposer.start(sequence)
    draft = proposer.propose([Ask(sequence, 4, least=(0.9999,) * 3)])[0]
    assert (len(draft), draft.confidence is None) == ((4, True) if whole else (1, False))


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    kind=st.sampled_from(["ngram", "small", "ngram, small", "twin", "tree"]),
    rule=st.sampled_from(["coupled", "block", "token"]),
    window=st.sampled_from([None, 4]),
    options=st.sampled_from([{}, {"temperature": 0}, PENALTIES]),
)
def test_what_drafts_for_a_model_changes_nothing_of_its_draft(
    toys: Toys, data: st.DataObject, kind: str, rule: str, window: int | None, options: dict[str, Any]
) -> None:
    """Tokens and laws, at any depth, through rounds that keep none, some or all of the draft or pass a sequence by."""
    cascade = DraftModelProposer(model(MIDDLE, sliding_window=window), inner(kind))
    alone = DraftModelProposer(model(MIDDLE, sliding_window=window))
    prompts = st.lists(st.integers(0, 23), min_size=1, max_size=20)
    sequences = [running(toys, data.draw(prompts), owner, rule, **options) for owner in range(3)]
    for sequence in sequences:
        for proposer in (cascade, alone):
            proposer.admit(sequence)
            proposer.read(sequence, len(sequence.tokens) - 1)
            proposer.start(sequence)
    while sequences:
        asked = [sequence for sequence in sequences if data.draw(st.booleans())]
        asks = [Ask(sequence, min(data.draw(st.integers(0, 7)), 48 - len(sequence.tokens))) for sequence in asked]
        for ask, draft, expected in zip(asks, cascade.propose(asks), alone.propose(asks), strict=True):
            assert (draft.tokens, draft.parents) == (expected.tokens, expected.parents)
            assert (draft.laws is None) == (rule == "coupled")
            for node in range(len(draft) if draft.laws else 0):
                np.testing.assert_array_equal(draft.law(node).p, expected.law(node).p)
            kept = data.draw(st.integers(0, len(draft)))
            for token in (*draft.tokens[:kept], data.draw(st.integers(0, 23))):
                ask.sequence.context.push(token)
        for sequence in sequences:
            if sequence not in asked:
                sequence.context.push(data.draw(st.integers(0, 23)))
        for sequence in [s for s in sequences if len(s.tokens) >= 40]:
            cascade.retire(sequence)
            alone.retire(sequence)
            sequences.remove(sequence)
    assert cascade._model.cache.live == 0


@pytest.mark.parametrize(("kind", "passes"), [("nothing", 7), ("twin", 1)])
def test_a_good_inner_proposer_saves_passes(toys: Toys, kind: str, passes: int) -> None:
    """Seven tokens in one pass where every guess is right."""
    stage, sequence = DraftModelProposer(model(MIDDLE), inner(kind)), running(toys, PROMPT, 0, "coupled")
    stage.admit(sequence)
    stage.read(sequence, len(PROMPT) - 1)
    stage.start(sequence)
    engine = stage._model.engine
    assert isinstance(engine, ToyEngine)
    engine.steps.clear()
    assert len(stage.propose([Ask(sequence, 7)])[0]) == 7
    assert len(engine.steps) == passes


def test_three_models_take_part_in_a_round_and_share_their_engines(toys: Toys) -> None:
    generator = toys.generator()
    params = SamplingParams(seed=2, max_tokens=40, ignore_eos=True, speculation="cascade")
    completions = {
        method: generator.generate([PROMPT], SamplingParams(**{**vars(params), "speculation": method}))[0]
        for method in ("cascade", "draft_model")
    }
    assert all(completion.token_ids == plainly(toys.target, generator, PROMPT, params).tokens for completion in completions.values())
    assert all(toys.engines[role].steps for role in ("target", "draft", "draft.middle"))
    assert completions["cascade"].stats.num_spec_steps < completions["draft_model"].stats.num_spec_steps, "the middle knows more"
    cascade, plain = generator._proposers["cascade"], generator._proposers["draft_model"]
    assert isinstance(cascade, DraftModelProposer)
    assert isinstance(cascade._inner, DraftModelProposer)
    assert isinstance(plain, DraftModelProposer)
    assert cascade._inner._model.engine is plain._model.engine
    assert cascade._inner._model.cache is not plain._model.cache


def law_after(shape: ToyModel, params: SamplingParams) -> Any:
    """Prefix → the target's law after prompt and prefix, from the definition."""

    def law(prefix: tuple[int, ...]) -> Law:
        context = Context(PROMPT)
        for token in prefix:
            context.push(token)
        return Transforms(params, VOCABULARY, (EOS,)).law(shape.after(context.tokens)[:VOCABULARY], context)

    return law


DRAWS = 2000
SHAPE = {"temperature": 0.9, "top_k": 8, "presence_penalty": 0.5}


def p_value(toys: Toys, rule: str, cascade: Sequence[str], seed: int) -> float:
    generator = toys.generator(batch=64, verification=rule, settings={"cascade": list(cascade)}, max_batch_size=64)
    texts, tau = LAWS["sample"](generator, PROMPT, SHAPE, "cascade", range(seed, seed + DRAWS))
    assert 1.2 < tau < 2.9, "drafts are neither always right nor always wrong"
    tree = LAWS["common_texts"](law_after(toys.target, LAWS["params_of"](SHAPE, "off")), DRAWS)
    cells, p = LAWS["g_test"](texts, tree)
    assert cells > 30
    return float(p)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["coupled", "block"])
@pytest.mark.parametrize("cascade", [("draft", "middle"), ("ngram", "draft", "middle")], ids=", ".join)
def test_texts_of_a_cascade_follow_the_targets_law(toys: Toys, rule: str, cascade: Sequence[str]) -> None:
    assert p_value(toys, rule, cascade, 10_000 * len("".join(cascade))) > 0.01


@pytest.mark.slow
def test_a_draft_that_says_another_law_than_its_own_is_found_out(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the inner model's law in place of the middle's, at every position."""
    draft = DraftModelProposer.propose

    def wrong(proposer: DraftModelProposer, asks: Sequence[Ask]) -> list[Draft]:
        drafts = draft(proposer, asks)
        if proposer._model.engine.entry.role != "draft.middle":
            return drafts
        return [
            Draft.chain(one.tokens, [Law.of(np.sqrt(law.at(np.arange(VOCABULARY)))) for law in one.laws or ()] or None) for one in drafts
        ]

    monkeypatch.setattr(DraftModelProposer, "propose", wrong)
    assert p_value(toys, "block", ("draft", "middle"), 0) < 1e-4


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"cascade": ["ngram"]}, "at least 2 items"),
        ({"cascade": ["draft", "ngram"]}, r"cascade\[1\] is 'ngram', but must be one of: draft \["),
        ({"cascade": ["cascade", "draft"]}, r"cascade\[0\] is 'cascade', but must be one of: draft, draft_model, ngram, suffix \["),
        ({"cascade": ["draft", "big"], "drafts": {"middle": {}}}, r"cascade\[1\] is 'big', but must be one of: draft, middle \["),
        (
            {"draft": {"vocabulary": "own"}, "cascade": ["suffix", "draft"]},
            r"cascade\[1\] is 'draft', whose vocabulary is its own: .* put it",
        ),
        ({"draft": {}, "drafts": {"b": {"vocabulary": "own"}}, "cascade": ["draft", "b"]}, "nothing but ngram can draft for it"),
        ({"method": "cascade"}, r"method 'cascade' needs a 'draft' section; add `draft: \{\}`"),
        ({"drafts": {"draft": {}}}, "drafts has the name draft, which means another draft"),
        ({"drafts": {"ngram": {}}}, "drafts has the name ngram"),
        ({"drafts": {"a/b": {}}}, "String should match pattern"),
        ({"hybrid_model": "ngram"}, "hybrid_model is 'ngram', but must be a method that runs a model"),
        ({"hybrid_model": "hybrid"}, "hybrid_model is 'hybrid'"),
        ({"method": "hybrid"}, "method 'hybrid' needs a 'draft' section"),
        ({"merged": ["draft"]}, "at least 2 items"),
        (
            {"merged": ["ngram", "cascade"]},
            r"merged\[1\] is 'cascade', but must be one of: draft, eagle3, early_exit, medusa, mtp, suffix \[",
        ),
        ({"merged": ["draft", "draft"]}, r"merged\[1\] is 'draft', but"),
        ({"drafts": {"mtp": {}}}, "drafts has the name mtp"),
        ({"method": "merged"}, "method 'merged' needs a 'draft' section"),
        ({"method": "merged", "merged": ["ngram", "mtp"]}, "method 'merged' needs a head; set heads.mtp.checkpoint"),
    ],
    ids=str,
)
def test_impossible_compositions_are_refused(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SpeculationSection.model_validate(section)


def test_roles_are_those_of_the_models_that_a_method_runs() -> None:
    section = SpeculationSection.model_validate(
        {"draft": {}, "drafts": {"middle": {"precision": "int8"}}, "cascade": ["suffix", "draft", "middle"], "hybrid_model": "cascade"}
    )
    assert {method: section.roles(method) for method in ("ngram", "suffix", "off")} == {"ngram": (), "suffix": (), "off": ()}
    assert section.roles("draft_model") == ("draft",)
    assert section.roles("cascade") == section.roles("hybrid") == ("draft", "draft.middle")
    assert section.roles("merged") == ("draft",)
    assert {role: model.precision for role, model in section.models.items()} == {"draft": "int4", "draft.middle": "int8"}
