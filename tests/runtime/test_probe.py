"""What is measured of a built engine is what it will be asked to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_engine import MAX_SEQ_LEN, MAX_STEP, VOCABULARY, ToyEngine, ToyModel, toy_entry

from specbuild import probe as probing


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
