"""What is trained is what runs: torch against the compiled engine of the exported head, verified pairs and drafted ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_support import open_session
from head_support import DRAFT_IDS, HIDDEN, LAYERS, VOCABULARY
from numpy.typing import NDArray
from training_support import recipe

from specbuild.builders.build import build
from specbuild.builders.head_spec import LayerHead, MedusaHead
from specbuild.builders.preparation import Preparation, prepare
from specbuild.builders.store import Store
from specbuild.builders.training.batches import Batch
from specbuild.builders.training.export import export
from specbuild.builders.training.initial import initial
from specbuild.builders.training.network import LayerNetwork, MedusaNetwork
from specbuild.builders.training.specs import head_spec
from specbuild.builders.training.unroll import bases, medusa_steps, unroll
from specbuild.bundle import Bundle
from specbuild.recipe import HeadRole

LENGTH, VIEW, STEPS = 14, 64, 4
Floats = NDArray[np.float32]


def exported(folder: Path, role: HeadRole) -> tuple[Preparation, dict[str, torch.Tensor], Bundle]:
    """A head with weights of no pattern, written, found again and compiled."""
    preparation = prepare(recipe(folder))
    target = preparation.models["target"].spec
    spec = head_spec(role, target, len(DRAFT_IDS))
    generator = torch.Generator().manual_seed(1)
    # Rounded as the file is: what is compared is the mathematics.
    parameters = {
        name: (value.detach() + 0.05 * torch.randn(value.shape, generator=generator)).half().float()
        for name, value in initial(spec, preparation.weights["target"], LAYERS, seed=0).items()
    }
    export(folder / "head", spec, parameters, DRAFT_IDS, preparation.models["target"].config, {})
    section = {"checkpoint": str(folder / "head"), "precision": "float32"}
    return preparation, parameters, build(recipe(folder, **{role: section}), store=Store(folder / "store")).bundle


def one_text(taps: int) -> Batch:
    random = np.random.default_rng(0)
    tokens = torch.from_numpy(random.integers(0, VOCABULARY, (1, LENGTH)))
    hidden = torch.from_numpy(random.standard_normal((1, LENGTH, taps * HIDDEN), dtype=np.float32))
    return Batch(tokens, hidden, torch.ones(1, LENGTH, dtype=torch.bool), tokens[..., None], torch.ones(1, LENGTH, 1))


@pytest.mark.parametrize("role", ["eagle3", "mtp"])
def test_an_autoregressive_head_drafts_as_it_was_trained(tmp_path: Path, role: HeadRole) -> None:
    preparation, parameters, bundle = exported(tmp_path, role)
    weights, target = preparation.weights["target"], preparation.models["target"].spec
    spec = head_spec(role, target, len(DRAFT_IDS))
    assert isinstance(spec, LayerHead)
    batch, head = one_text(len(spec.taps)), torch.from_numpy(weights.read("head")[DRAFT_IDS])
    network = LayerNetwork(spec, parameters, torch.from_numpy(weights.read("embedding")), target.norm_eps)
    everyone = torch.ones(len(bases(batch).texts), dtype=torch.bool)
    trained = {
        (base, number): row
        for number, step in enumerate(unroll(network, batch, batch.hidden, bases(batch), [everyone] * (STEPS - 1)))
        for base, row in zip(step.rows.positions.tolist(), (step.out @ head.T).detach().numpy(), strict=True)
    }
    entry = bundle.engine(role)
    session = open_session(bundle.path / entry.file)
    tokens, features = batch.tokens[0].numpy(), batch.hidden[0].numpy()
    for base in range(LENGTH - 2):
        expected = drafted(session, tokens, features, base, min(STEPS, LENGTH - 2 - base))
        for number, logits in enumerate(expected):
            np.testing.assert_allclose(trained[base, number], logits, rtol=2e-4, atol=2e-4)
    assert len(trained) == sum(min(STEPS, LENGTH - 2 - base) for base in range(LENGTH - 2))


def drafted(session: object, tokens: NDArray[np.int64], features: Floats, base: int, steps: int) -> list[Floats]:
    """Logits of the engine after the pairs up to ``base``, and of the steps that it goes on alone with the text's own tokens."""
    found, hidden = [], np.zeros(HIDDEN, np.float32)
    shape = (1, 2, VIEW, 16)
    cache = {"past_key.0": np.zeros(shape, np.float32), "past_value.0": np.zeros(shape, np.float32)}
    start = 0
    for step in range(steps):
        end = base + step + 1
        count = end - start
        position = np.arange(start, end)
        given = features[start:end] if step == 0 else np.zeros_like(features[:1])
        inputs = {
            "input_ids": tokens[None, start + 1 : end + 1],
            "features": given[None],
            "previous": np.zeros((1, count, HIDDEN), np.float32) if step == 0 else hidden[None, None],
            "position_ids": position[None],
            "write_index": np.array([start]),
            "attention_mask": (np.arange(VIEW) <= position[:, None])[None, None],
            "logit_rows": np.array([[count - 1]]),
        }
        logits, states, key, value = session.run(["logits", "hidden", "key.0", "value.0"], inputs | cache)  # type: ignore[attr-defined]
        cache = {"past_key.0": key, "past_value.0": value}
        found.append(logits[0, 0])
        hidden, start = states[0, -1], end
    return found


def test_medusa_heads_draft_as_they_were_trained(tmp_path: Path) -> None:
    preparation, parameters, bundle = exported(tmp_path, "medusa")
    weights, spec = preparation.weights["target"], preparation.models["target"].spec
    batch, head = one_text(1), torch.from_numpy(weights.read("head")[DRAFT_IDS])
    medusa = head_spec("medusa", spec, len(DRAFT_IDS))
    assert isinstance(medusa, MedusaHead)
    logits = open_session(bundle.path / bundle.engine("medusa").file).run(["logits"], {"features": batch.hidden.numpy()})[0]
    for number, step in enumerate(medusa_steps(MedusaNetwork(medusa, parameters), batch, batch.hidden, bases(batch))):
        assert step.targets.tolist() == [base + 2 + number for base in step.rows.positions.tolist()]
        ours = (step.out @ head.T).detach().numpy()
        np.testing.assert_allclose(ours, logits[0, step.rows.positions.numpy(), number], rtol=2e-4, atol=2e-4)


def test_the_exported_draft_ids_are_the_targets(tmp_path: Path) -> None:
    *_, bundle = exported(tmp_path, "eagle3")
    entry = bundle.engine("eagle3")
    assert entry.d2t is not None
    np.testing.assert_array_equal(np.load(bundle.path / entry.d2t), DRAFT_IDS)
