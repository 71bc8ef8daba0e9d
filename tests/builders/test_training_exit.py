"""An adapter for an early exit: it learns, goes on where it was killed, and what it drafts in training the compiled exit drafts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_support import open_session
from training_support import World, recipe

from specbuild.builders.build import build
from specbuild.builders.head_spec import ExitAdapter
from specbuild.builders.store import Store
from specbuild.builders.training.batches import assemble
from specbuild.builders.training.export import export
from specbuild.builders.training.initial import initial
from specbuild.builders.training.network import ExitNetwork
from specbuild.builders.training.trainer import Progress, Trainer
from specbuild.builders.training.unroll import bases, exit_steps
from specbuild.bundle import Bundle
from specbuild.recipe import LOWER
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams

LAYERS = 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"), exit_layer=LAYERS)


def compiled(world: World, trainer: Trainer, folder: Path) -> Bundle:
    """The target of ``world`` with the trained adapter behind its first layers."""
    config = world.preparation.models["target"].config
    export(folder / "adapter", trainer.spec, trainer.parameters, world.vocabulary.ids, config, {})
    asked = recipe(world.folder, early_exit={"layers": LAYERS, "adapter": str(folder / "adapter")})
    return build(asked, store=Store(folder / "store")).bundle


def ignore(progress: Progress) -> None:
    pass


def test_a_trained_adapter_drafts_as_far_as_training_measured(world: World, tmp_path: Path) -> None:
    trainer = world.trainer("early_exit", 60, rate=0.01)
    learned, held_out = world.samples[4:], world.samples[:4]
    before = trainer.evaluate(held_out)
    after = trainer.run(learned, held_out, tmp_path / "checkpoint.pt", ignore)
    assert before.tau < 2
    assert after.tau > 3.5
    params = SamplingParams(max_tokens=36, temperature=0, speculation="early_exit", draft_len=4, ignore_eos=True)
    answers = Generator(compiled(world, trainer, tmp_path)).generate([text.tokens[:4].tolist() for text in world.texts[:4]], params)
    assert [list(answer.token_ids) for answer in answers] == [text.tokens[4:].tolist() for text in world.texts[:4]]
    tau = sum(answer.stats.emitted_tokens for answer in answers) / sum(answer.stats.num_spec_steps for answer in answers)
    assert tau == pytest.approx(after.tau, rel=0.05)


def test_the_compiled_exit_says_what_the_trained_one_says(world: World, tmp_path: Path) -> None:
    trainer = world.trainer("early_exit", 1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in trainer.parameters.values():  # rounded as the file is: what is compared is the mathematics
            value.copy_((value + 0.05 * torch.randn(value.shape, generator=generator)).half().float())
    bundle, tokens = compiled(world, trainer, tmp_path), world.texts[0].tokens[None].astype(np.int64)
    states = torch.from_numpy(world.reader.read(tokens[0])[:, : world.target.hidden_size])
    assert isinstance(trainer.spec, ExitAdapter)
    network = ExitNetwork(trainer.spec, trainer.parameters, world.target.norm_eps)
    position = np.arange(tokens.shape[1])
    given = {
        "input_ids": tokens,
        "position_ids": position[None],
        "write_index": np.zeros(1, np.int64),
        "attention_mask": (position <= position[:, None])[None, None],
        "logit_rows": position[None],
        **{f"past_{kind}.{layer}": np.zeros((1, 2, len(position), 16), np.float32) for layer in range(LAYERS) for kind in ("key", "value")},
    }
    (logits,) = open_session(bundle.path / bundle.engine(LOWER).file).run(["logits"], given)
    expected = network.stream(states).detach().numpy() @ world.weights.read("head").T
    np.testing.assert_allclose(logits[0], expected, rtol=1e-3, atol=1e-3)


def test_every_step_reads_the_state_before_the_token_that_it_drafts(world: World) -> None:
    batch = assemble(world.samples[:2])
    spec = world.trainer("early_exit", 1).spec
    assert isinstance(spec, ExitAdapter)
    network = ExitNetwork(spec, initial(spec, world.weights, world.target.num_layers, seed=0), world.target.norm_eps)
    states = batch.hidden[..., : spec.hidden_size]
    for number, step in enumerate(exit_steps(network, batch, states, bases(batch), 4)):
        assert step.targets.tolist() == (step.rows.positions + 2 + number).tolist()
        assert batch.learned[step.rows.texts, step.targets].all()
        assert len(step.targets) == 2 * (36 - number)
        torch.testing.assert_close(step.out, network.stream(states[step.rows.texts, step.targets - 1]))


def test_a_killed_run_goes_on_to_the_weights_of_an_unbroken_one(world: World, tmp_path: Path) -> None:
    learned, held_out = world.samples[4:], world.samples[:4]
    unbroken, killed, resumed = (world.trainer("early_exit", 10) for _ in range(3))
    unbroken.run(learned, held_out, tmp_path / "unbroken.pt", ignore)
    learn = killed.learn

    def dies(samples: object) -> tuple[float, float]:
        if killed.optimizer.done == 6:
            raise KeyboardInterrupt
        return learn(samples)  # type: ignore[arg-type]

    killed.learn = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        killed.run(learned, held_out, tmp_path / "killed.pt", ignore)
    resumed.run(learned, held_out, tmp_path / "killed.pt", ignore)
    assert resumed.optimizer.done == 10
    for role, value in unbroken.parameters.items():
        torch.testing.assert_close(resumed.parameters[role].detach(), value.detach(), rtol=0, atol=1e-6)
