"""What is measured of a built engine is what it will be asked to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toy_engine import MAX_SEQ_LEN, MAX_STEP, VOCABULARY, ToyEngine, ToyModel, invariant, toy_entry

from specbuild import probe as probing
from specbuild.bundle import Probe


@pytest.mark.parametrize("off", [0.0, 0.5])
def test_paths_behind_siblings_are_compared_with_chains(monkeypatch: pytest.MonkeyPatch, off: float) -> None:
    """The toy's logits are where its entry says so a matter of what lies between a token and its ancestors."""
    entry = toy_entry("target", ToyModel(), probe=invariant(off), vocab_size=VOCABULARY)
    engine = ToyEngine(ToyModel(), entry)
    monkeypatch.setattr(probing, "load", lambda folder, entry: engine)
    found = probing.probe(Path(), entry, None)
    assert found.tree_difference is not None
    assert (found.tree_difference > 0, found.trees) == (off > 0, off == 0)
    trees = [step for step in engine.steps if len(step.input_ids) == 1 and (np.diff(step.position_ids) == 0).any()]
    assert {int((np.diff(step.position_ids) == 0).sum()) for step in trees} == {1, 2, 3, 4, MAX_STEP - 2}, "siblings"
    assert {int(step.write_index[0]) for step in trees} == {1, 16, 23, MAX_SEQ_LEN - 2 * MAX_STEP}, "prefixes"


def test_what_was_not_measured_allows_no_trees() -> None:
    """A bundle of an older version."""
    assert not Probe(step_invariant=True, batch_invariant=True, view_invariant=True, step_costs=(), parity=None).trees


def test_passes_that_are_timed_have_tokens_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal tokens would choose the same experts, and a mixture of experts would look as cheap as a dense model."""
    engine = ToyEngine(ToyModel(), toy_entry("target", ToyModel(), vocab_size=VOCABULARY))
    monkeypatch.setattr(probing, "load", lambda folder, entry: engine)
    monkeypatch.setattr(probing, "CONTEXTS", (MAX_SEQ_LEN - MAX_STEP,))
    found = probing.probe(Path(), engine.entry, None)
    assert {(cost.batch, cost.step) for cost in found.step_costs} == {(b, s) for b in (1, 2, 4) for s in (1, 2, 4, MAX_STEP)}
    timed = engine.steps[-len(found.step_costs) * (probing.REPEATS + 1) :]
    for step in timed:
        batch, count = step.input_ids.shape
        assert all(len(set(row)) > count / 2 for row in step.input_ids.tolist())
        assert len({tuple(row) for row in step.input_ids.tolist()}) > batch / 2
