"""Trees that grow by confidence: which nodes they have, that their law is exact however they grow, and that they keep what chains keep."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from enumeration import VOCABULARY as FEW
from enumeration import Branching, Model, enumerate_all, error, law_of_judging, random_model
from plain import plainly
from test_cascade import MIDDLE, PROMPT, law_after, model, running
from toy_engine import VOCABULARY, ToyModel, Toys, toys

from specbuild.runtime.acceptance import RULES, Rule
from specbuild.runtime.context import Context
from specbuild.runtime.draft import Draft, Shape
from specbuild.runtime.proposers.base import Ask
from specbuild.runtime.proposers.draft_model import DraftModelProposer
from specbuild.runtime.proposers.growth import Growth
from specbuild.runtime.request import Running
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.scheduler import Scheduler

__all__ = ["toys"]
LAWS = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "laws.py"))
TREE_RULES = [name for name, rule in RULES.items() if rule.trees]


def grown(rule: Rule, proposer: Model, shape: Shape, randomness: Any) -> Draft:
    """What grows of a proposer's exact laws; the draft carries them whatever the rule."""
    context = Context([0])
    transforms = SimpleNamespace(vocabulary_size=FEW, draft_law=lambda row, context, count: proposer(tuple(context.tokens[1:])))
    request = SimpleNamespace(params=SamplingParams())
    sequence: Any = SimpleNamespace(rule=rule, context=context, transforms=transforms, randomness=randomness, request=request)
    growth = Growth(Ask(sequence, shape.length, budget=shape.budget))
    while growth.open:
        laws = [proposer(node.path) for node in growth.open]
        growth.grow([np.log(np.maximum(law.at(np.arange(FEW)).astype(np.float64), 1e-30)).astype(np.float32) for law in laws])
    draft = growth.draft()
    return Draft(draft.tokens, draft.parents, tuple(node.law for node in growth._nodes if node.law is not None))


def drafts(rule: Rule, proposer: Model, shape: Shape) -> list[tuple[Draft, Any]]:
    """Every draft that may grow, with its probability."""
    found: dict[tuple[int, ...], Draft] = {}

    def run(randomness: Branching) -> tuple[int, ...]:
        draft = grown(rule, proposer, shape, randomness)
        key = (*draft.tokens, *draft.parents)
        found[key] = draft
        return key

    return [(found[key], probability) for key, probability in enumerate_all(run).items()]


GROWN = [Shape(1, 2), Shape(2, 3), Shape(2, 4), Shape(3, 4)]


@pytest.mark.parametrize("shape", GROWN, ids=str)
@pytest.mark.parametrize("rule", TREE_RULES)
def test_the_law_of_what_grows_is_the_targets_with_error_zero(rule: str, shape: Shape) -> None:
    """Which nodes there are depends on what was drawn; and it does: there are trees of several forms."""
    forms = set()
    for seed in range(2 if shape.budget == 4 else 4):
        found = drafts(RULES[rule], random_model(2 * seed + 1, zeros=seed % 2 == 1), shape)
        target = random_model(2 * seed, zeros=seed % 2 == 1)
        assert error(law_of_judging(RULES[rule], target, found), target, shape.length + 1) == 0
        forms |= {draft.parents for draft, _ in found}
    assert len(forms) > 1 or shape not in GROWN[1:3] or rule == "target_only", "which draws nothing"


@pytest.mark.parametrize("rule", ["traversal", "recursive"])
def test_a_tree_that_looks_at_a_token_before_it_keeps_it_is_noticed(rule: str) -> None:
    """The planted fault: nodes chosen by their own confidence, as the rules without laws may."""
    careless = Rule(RULES[rule].choose_children, RULES[rule].judge, needs_laws=False)
    errors = []
    for seed in range(4):
        target, shape = random_model(2 * seed), Shape(2, 3)
        errors.append(error(law_of_judging(RULES[rule], target, drafts(careless, random_model(2 * seed + 1), shape)), target, 3))
    assert max(errors) > Fraction(1, 200)


def started(toys: Toys, rule: str, *proposers: DraftModelProposer, **options: Any) -> Running:
    sequence = running(toys, PROMPT, 0, rule, **options)
    for proposer in proposers:
        proposer.admit(sequence)
        proposer.read(sequence, len(PROMPT) - 1)
        proposer.start(sequence)
    return sequence


def log_shares(shape: ToyModel, text: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    row = shape.after(text)[:VOCABULARY].astype(np.float64)
    return row - np.log(np.exp(row).sum())


def best_tree(chain: Sequence[int], text: Sequence[int], depth: int, extra: int) -> set[tuple[int, ...]]:
    """Paths of the chain and of the ``extra`` other nodes of most confidence, of all that there could be."""
    candidates: list[tuple[float, tuple[int, ...]]] = []

    def descend(path: tuple[int, ...], confidence: float) -> None:
        if len(path) == depth:
            return
        for token, share in enumerate(log_shares(MIDDLE, [*text, *path])):
            candidates.append((confidence + share, (*path, token)))
            if confidence + share > -6:
                descend((*path, token), confidence + share)

    descend((), 0.0)
    first = {tuple(chain[: length + 1]) for length in range(depth)}
    others = sorted((pair for pair in candidates if pair[1] not in first), reverse=True)
    return first | {path for _, path in others[:extra]}


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(draft.tokens[step] for step in draft.path(node)) for node in range(len(draft))}


@pytest.mark.parametrize(("depth", "budget"), [(1, 4), (2, 5), (3, 5), (3, 7), (4, 7)])
def test_at_temperature_zero_no_tree_around_the_chain_has_more_confidence(toys: Toys, depth: int, budget: int) -> None:
    """Against all nodes that there could be, in round after round; a pass a level."""
    proposer, alone = DraftModelProposer(model(MIDDLE)), DraftModelProposer(model(MIDDLE))
    sequence = started(toys, "coupled", proposer, alone, temperature=0)
    for _ in range(5):
        (tree,), (chain,) = proposer.propose([Ask(sequence, depth, budget=budget)]), alone.propose([Ask(sequence, depth)])
        assert paths(tree) == best_tree(chain.tokens, sequence.tokens, depth, budget - depth)
        assert len(tree) == budget
        for token in (*(tree.tokens[step] for step in tree.path(len(tree) - 1)), 7):
            sequence.context.push(token)


@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 2}], ids=str)
def test_a_tree_has_the_chain_and_no_more_than_its_budget(toys: Toys, rule: str, options: dict[str, Any]) -> None:
    proposer, alone = DraftModelProposer(model(MIDDLE)), DraftModelProposer(model(MIDDLE))
    sequence = started(toys, rule, proposer, alone, **options)
    for length, budget in [(3, 7), (2, 3), (1, 7), (4, 4), (0, 0), (4, 6)]:
        (tree,), (chain,) = proposer.propose([Ask(sequence, length, budget=budget)]), alone.propose([Ask(sequence, length)])
        assert paths(chain) <= paths(tree)
        assert len(chain) == tree.depth == length
        assert len(tree) <= budget
        assert (tree.laws is not None) == (RULES[rule].needs_laws and length > 0) or not len(tree)
        for node in range(len(tree)):
            assert tree.law(node).probability(tree.tokens[node]) > 0, "in its own law, earlier siblings left out"
        sequence.context.push(length)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_accepts_at_least_what_its_chain_does(toys: Toys, temperature: float) -> None:
    """Round by round after the same text, several side by side; over all more. A tree needs no more passes than its depth."""
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=40, ignore_eos=True, speculation="draft_model", draft_len=3)
        for seed in range(4)
    ]
    rounds = {}
    for budget in (0, 7):
        generator = toys.generator()
        answers = generator.generate([[seed + 1, 2] for seed in range(4)], [replaced(each, tree_budget=budget) for each in params])
        for seed, (answer, each) in enumerate(zip(answers, params, strict=True)):
            assert answer.token_ids == plainly(toys.target, generator, [seed + 1, 2], each).tokens
        rounds[budget] = sum(answer.stats.num_spec_steps for answer in answers)
    assert rounds[7] < 0.95 * rounds[0]


def sureness(sequence: Running, path: Sequence[int], token: int, temperature: float) -> float:
    """The token's probability; where the noise is known, its share beside the three that come next."""
    scores = log_shares(MIDDLE, [*sequence.tokens, *path])
    if temperature:
        scores = np.sort(scores + sequence.randomness.noise(np.arange(VOCABULARY), len(path)))[-4:]
        return float(np.exp(scores[-1]) / np.exp(scores).sum())
    return float(np.exp(scores[token]))


@pytest.mark.parametrize(("rule", "temperature"), [*((rule, 0.0) for rule in RULES), ("coupled", 1.0)])
def test_a_weighed_chain_says_how_sure_it_is_and_ends_where_it_is_not(toys: Toys, rule: str, temperature: float) -> None:
    """Where laws are needed it may do neither."""
    proposer, alone = DraftModelProposer(model(MIDDLE)), DraftModelProposer(model(MIDDLE))
    sequence, lengths = started(toys, rule, proposer, alone, temperature=temperature), set()
    for turn in range(12):
        (weighed,), (chain,) = proposer.propose([Ask(sequence, 5, least=(0.1,) * 4)]), alone.propose([Ask(sequence, 5)])
        lengths.add(len(weighed))
        assert weighed.tokens == chain.tokens[: len(weighed)]
        if weighed.confidence is not None:
            drafted = weighed.tokens
            shares = [sureness(sequence, drafted[:place], token, temperature) for place, token in enumerate(drafted)]
            assert weighed.confidence == pytest.approx(shares, rel=1e-4)
            assert np.prod(shares[:-1]) >= 0.1
            assert len(weighed) == 5 or np.prod(shares) < 0.1
        sequence.context.push(turn)
    assert (lengths == {5}) == RULES[rule].needs_laws == (weighed.confidence is None)


@pytest.mark.parametrize("budget", [0, 7])
@pytest.mark.parametrize("method", ["draft_model", "ngram", "hybrid", "cascade"])
def test_a_service_that_chooses_between_chains_and_trees_writes_what_plain_decoding_does(toys: Toys, method: str, budget: int) -> None:
    generator = toys.generator(interactive=True, settings={"tree_budget": budget})
    chooser, params = generator.loop.scheduler._draft_length, SamplingParams(seed=3, max_tokens=40, ignore_eos=True, speculation=method)
    assert chooser is not None
    chooser._drafts = {}  # which cost as much as the target's here, where nothing would pay
    chosen: set[Shape] = set()
    observe = chooser.observe
    chooser.observe = lambda sequence, asked, *rest: (chosen.add(asked), observe(sequence, asked, *rest))[1]  # type: ignore[method-assign]
    prompts = [[seed, 2, 3, 2] for seed in range(9)]
    for prompt, answer in zip(prompts, generator.generate(prompts, params), strict=True):
        assert answer.token_ids == plainly(toys.target, generator, prompt, params).tokens
    assert {shape.branches for shape in chosen} == {False, budget > 0}


def replaced(params: SamplingParams, **changes: Any) -> SamplingParams:
    return SamplingParams(**{**vars(params), **changes})


@pytest.mark.slow
@pytest.mark.parametrize("rule", TREE_RULES)
def test_texts_of_a_models_trees_follow_the_targets_law(toys: Toys, rule: str) -> None:
    generator = toys.generator(batch=64, verification=rule, settings={"draft_len": 2, "tree_budget": 5}, max_batch_size=64)
    shape, draws = {"temperature": 0.9, "top_k": 8, "presence_penalty": 0.5}, 2000
    params = [replaced(LAWS["params_of"](shape, "draft_model", seed), draft_len=2) for seed in range(draws)]
    answers = generator.generate([PROMPT] * draws, params)
    assert max(answer.stats.num_draft_tokens for answer in answers) > 2 * max(answer.stats.num_spec_steps for answer in answers)
    tree = LAWS["common_texts"](law_after(toys.target, LAWS["params_of"](shape, "off")), draws)
    cells, p = LAWS["g_test"]([answer.token_ids for answer in answers], tree)
    assert cells > 30
    assert p > 0.01


def shapes(rows: int, requests: Sequence[dict[str, Any]], toys: Toys, settings: dict[str, Any]) -> list[Shape]:
    generator = toys.generator(settings=settings)
    scheduler = Scheduler(rows, 48, 7)
    for request in requests:
        scheduler.submit(generator.intake.sequence([1] * request.pop("prompt", 1), SamplingParams(**request)))
        scheduler.admit()
        scheduler.start()
    return list(scheduler.plan().shapes)


def test_a_plan_has_the_budgets_that_were_asked_for_as_far_as_they_fit(toys: Toys) -> None:
    asked = [
        {"max_tokens": 30},
        {"max_tokens": 30, "tree_budget": 6, "draft_len": 3},
        {"max_tokens": 30, "tree_budget": 0},
        {"max_tokens": 30, "draft_len": 7},
        {"max_tokens": 3, "tree_budget": 7},
        {"max_tokens": 30, "speculation": "off"},
        {"max_tokens": 8, "prompt": 40},
    ]
    wanted = [Shape(2, 5), Shape(3, 6), Shape(2, 2), Shape(7, 7), Shape(2, 7), Shape(0, 0), Shape(2, 5)]
    assert shapes(7, asked, toys, {"draft_len": 2, "tree_budget": 5}) == wanted
    near = [{"max_tokens": 5, "prompt": 43}, {"max_tokens": 1, "tree_budget": 7}]
    assert shapes(2, near, toys, {"draft_len": 3, "tree_budget": 5}) == [Shape(3, 3), Shape(0, 0)], "a row holds all that was looked at"
