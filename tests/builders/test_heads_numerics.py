"""Imported heads compute what their papers say, in every published layout, and keep their bits however the pairs come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import head_support
import numpy as np
import pytest
from decoder_support import open_session
from head_reference import Floats, Reference
from head_support import DRAFT_IDS, HIDDEN, VOCABULARY, save_head, save_target
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from safetensors.numpy import load_file

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.recipe import Recipe

LENGTH, VIEW = 20, 64
Pairs = tuple[NDArray[np.int64], Floats, Floats]


def built(folder: Path, role: str, head: tuple[dict[str, Any], head_support.Tensors], precision: str = "float32") -> Bundle:
    target = save_target(folder / "target")
    sections = {role: {"checkpoint": str(save_head(folder / "head", *head)), "precision": precision}}
    target_section = {"max_seq_len": 64, "precision": "float32"}
    document = {"name": "tiny", "checkpoint": str(target), "target": target_section, "speculation": {"heads": sections}}
    return build(Recipe.model_validate(document), store=Store(folder / "store")).bundle


def reference(folder: Path) -> Reference:
    return Reference(load_file(folder / "head" / "model.safetensors"), load_file(folder / "target" / "model.safetensors"))


class Chain:
    """One sequence in an autoregressive head's engine."""

    def __init__(self, session: InferenceSession) -> None:
        self.session, self.length = session, 0
        shape = (1, 2, VIEW, 16)
        # Rubbish, not zeros: what was never written must never count.
        self.cache = {"past_key.0": np.full(shape, 1e3, np.float32), "past_value.0": np.full(shape, 1e3, np.float32)}

    def step(self, tokens: NDArray[np.int64], features: Floats, previous: Floats) -> tuple[Floats, Floats]:
        """(logits [S,V], hidden [S,H]) of pairs that follow those before: tokens [S], features [S,·], previous [S,H]."""
        count = len(tokens)
        position = self.length + np.arange(count)
        inputs = {
            "input_ids": tokens[None],
            "features": features[None],
            "previous": previous[None],
            "position_ids": position[None],
            "write_index": np.array([self.length]),
            "attention_mask": (np.arange(VIEW) <= position[:, None])[None, None],
            "logit_rows": np.arange(count)[None],
        }
        names = ["logits", "hidden", "key.0", "value.0"]
        logits, hidden, *cache = self.session.run(names, inputs | self.cache)
        self.cache = {f"past_{name}": value for name, value in zip(names[2:], cache, strict=True)}
        self.length += count
        return logits[0], hidden[0]


def pairs(taps: int, seed: int = 0) -> Pairs:
    """LENGTH pairs, half of them verified and half drafted."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, VOCABULARY, LENGTH)
    features = random.standard_normal((LENGTH, taps * HIDDEN), dtype=np.float32)
    previous = random.standard_normal((LENGTH, HIDDEN), dtype=np.float32)
    features[LENGTH // 2 :], previous[: LENGTH // 2] = 0, 0
    return tokens, features, previous


CASES: dict[str, tuple[str, Callable[[], Any], Callable[[Reference, Pairs], tuple[Floats, Floats]], int]] = {
    "eagle3": ("eagle3", head_support.eagle3, lambda it, given: it.eagle3(*given, norms=False), 3),
    "eagle3.1": ("eagle3", lambda: head_support.eagle3(norms=True), lambda it, given: it.eagle3(*given, norms=True), 3),
    "deepseek": ("mtp", lambda: head_support.mtp("deepseek"), lambda it, given: it.mtp("deepseek", *given), 1),
    "mimo": ("mtp", lambda: head_support.mtp("mimo"), lambda it, given: it.mtp("mimo", *given), 1),
    "qwen3_next": ("mtp", lambda: head_support.mtp("qwen3_next"), lambda it, given: it.mtp("qwen3_next", *given), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_a_head_computes_what_its_paper_says(case: str, tmp_path: Path) -> None:
    role, head, expect, taps = CASES[case]
    bundle = built(tmp_path, role, head())
    given = pairs(taps)
    logits, hidden = Chain(open_session(bundle.path / bundle.engine(role).file)).step(*given)
    expected_logits, expected_hidden = expect(reference(tmp_path), given)
    assert expected_logits.std() > 0.5, "logits too flat to compare"
    assert np.abs(logits - expected_logits).max() <= 1e-5
    assert np.abs(hidden - expected_hidden).max() <= 1e-5


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
@pytest.mark.parametrize("case", ["eagle3", "deepseek"])
def test_a_chain_keeps_its_bits(case: str, precision: str, tmp_path: Path) -> None:
    """Verified pairs in one pass, in pieces or one by one, after a draft that was taken back: all the same."""
    role, head, _, taps = CASES[case]
    bundle = built(tmp_path, role, head(), precision)
    session = open_session(bundle.path / bundle.engine(role).file)
    tokens, features, previous = pairs(taps)

    def fed(*sizes: int) -> tuple[Floats, Floats]:
        chain, parts = Chain(session), []
        for size in sizes:
            now = slice(chain.length, chain.length + size)
            parts.append(chain.step(tokens[now], features[now], previous[now]))
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    whole = fed(LENGTH)
    for sizes in ([1] * LENGTH, [7, 1, 5, 7]):
        assert all(np.array_equal(one, other) for one, other in zip(fed(*sizes), whole, strict=True)), sizes

    chain = Chain(session)
    _, hidden = chain.step(tokens[:8], features[:8], previous[:8])
    for _ in range(3):  # the head goes on alone, fed with its own state
        _, hidden = chain.step(np.array([5]), np.zeros_like(features[:1]), hidden[-1:])
    chain.length = 8
    assert np.array_equal(chain.step(tokens[8:], features[8:], previous[8:])[0], whole[0][8:]), "a draft leaves no trace"


@pytest.mark.parametrize("own_heads", [True, False])
def test_medusa_heads_compute_what_their_paper_says(own_heads: bool, tmp_path: Path) -> None:
    bundle = built(tmp_path, "medusa", head_support.medusa(own_heads=own_heads))
    features = np.random.default_rng(0).standard_normal((2, 5, HIDDEN), dtype=np.float32)
    session = open_session(bundle.path / bundle.engine("medusa").file)
    (logits,) = session.run(None, {"features": features})
    assert logits.shape == (2, 5, 3, VOCABULARY)
    for row in range(2):
        assert np.abs(logits[row] - reference(tmp_path).medusa(features[row], 3, 2)).max() <= 1e-5


def test_a_head_without_lm_head_takes_the_rows_of_the_targets(tmp_path: Path) -> None:
    config, tensors = head_support.eagle3()
    del tensors["lm_head.weight"]
    bundle = built(tmp_path, "eagle3", (config, tensors))
    logits, _ = Chain(open_session(bundle.path / bundle.engine("eagle3").file)).step(*pairs(3))
    it = reference(tmp_path)
    it.tensors["lm_head.weight"] = it.embedding[DRAFT_IDS]
    assert np.abs(logits - it.eagle3(*pairs(3), norms=False)[0]).max() <= 1e-5
