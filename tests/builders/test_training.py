"""Training itself: it learns, it is the same each time, and a killed run goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from training_support import World, recipe

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.builders.training.batches import Batch, parts, plan
from specbuild.builders.training.evaluation import Tally
from specbuild.builders.training.export import export
from specbuild.builders.training.features import load_samples
from specbuild.builders.training.loss import head_loss
from specbuild.builders.training.trainer import Progress, Trainer
from specbuild.recipe import HeadRole
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {role: value.detach().clone() for role, value in trainer.parameters.items()}


def ignore(progress: Progress) -> None:
    pass


class KilledError(Exception):
    pass


@pytest.mark.parametrize(("role", "rate"), [("eagle3", 0.02), ("mtp", 0.02), ("medusa", 0.1)])
def test_a_trained_head_drafts_as_far_as_training_measured(world: World, tmp_path: Path, role: HeadRole, rate: float) -> None:
    """On texts that it has not seen; exported, imported, compiled, and what it drafts for is still what the target says alone."""
    trainer = world.trainer(role, 60, matrix_rate=rate, vector_rate=0.01)
    learned, held_out = world.samples[4:], world.samples[:4]
    before = trainer.evaluate(held_out)
    reports: list[Progress] = []
    after = trainer.run(learned, held_out, tmp_path / "checkpoint.pt", reports.append)
    assert reports[-1].loss < reports[0].loss
    assert before.tau < 1.5
    assert after.tau > 3

    export(tmp_path / "head", trainer.spec, trainer.parameters, world.vocabulary.ids, world.preparation.models["target"].config, {})
    section = {"checkpoint": str(tmp_path / "head"), "precision": "float32"}
    generator = Generator(build(recipe(world.folder, **{role: section}), store=Store(tmp_path / "store")).bundle)
    params = SamplingParams(max_tokens=36, temperature=0, speculation=role, draft_len=4, ignore_eos=True)
    answers = generator.generate([text.tokens[:4].tolist() for text in world.texts[:4]], params)
    assert [list(answer.token_ids) for answer in answers] == [text.tokens[4:].tolist() for text in world.texts[:4]]
    tau = sum(answer.stats.emitted_tokens for answer in answers) / sum(answer.stats.num_spec_steps for answer in answers)
    assert tau == pytest.approx(after.tau, rel=0.05)


def test_the_same_seed_gives_the_same_weights_and_another_one_others(world: World, tmp_path: Path) -> None:
    runs = []
    for number, seed in enumerate((1, 1, 2)):
        trainer = world.trainer("eagle3", 6, seed=seed)
        trainer.run(world.samples[4:], world.samples[:4], tmp_path / f"{number}.pt", ignore)
        runs.append(weights(trainer))
    for role, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][role], rtol=0, atol=1e-6)
    assert any((runs[0][role] - runs[2][role]).abs().max() > 1e-4 for role in runs[0])


def test_a_killed_run_goes_on_to_the_weights_of_an_unbroken_one(world: World, tmp_path: Path) -> None:
    learned, held_out = world.samples[4:], world.samples[:4]
    unbroken = world.trainer("eagle3", 14)
    unbroken.run(learned, held_out, tmp_path / "unbroken.pt", ignore)

    killed = world.trainer("eagle3", 14)
    learn = killed.learn

    def dies(samples: object) -> tuple[float, float]:
        if killed.optimizer.done == 10:
            raise KilledError
        return learn(samples)  # type: ignore[arg-type]

    killed.learn = dies  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        killed.run(learned, held_out, tmp_path / "killed.pt", ignore)

    resumed = world.trainer("eagle3", 14)
    resumed.run(learned, held_out, tmp_path / "killed.pt", ignore)
    assert resumed.optimizer.done == 14
    for role, value in weights(unbroken).items():
        torch.testing.assert_close(resumed.parameters[role].detach(), value, rtol=0, atol=1e-6)


def test_samples_are_read_as_they_were_written(world: World) -> None:
    last = world.reader.read(world.texts[5].tokens)
    sample = world.samples[5]
    np.testing.assert_array_equal(sample.tokens, world.texts[5].tokens)
    np.testing.assert_array_equal(sample.read("hidden"), last.astype(np.float16))
    logits = last[:, -world.target.hidden_size :] @ world.weights.read("head")[world.vocabulary.ids].T
    best = sample.read("law_ids")[np.arange(40), sample.read("law").argmax(1)]
    np.testing.assert_array_equal(best, logits.argmax(1))
    np.testing.assert_allclose(sample.read("law").sum(1, dtype=np.float32), 1, atol=2e-3)


def test_hidden_states_do_not_depend_on_what_follows(world: World) -> None:
    tokens = world.texts[0].tokens
    np.testing.assert_allclose(world.reader.read(tokens)[:20], world.reader.read(tokens[:20]), rtol=1e-4, atol=1e-4)


def test_parts_hold_every_text_once_and_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbuild.builders.training.batches.PART_TOKENS", 100)
    found = list(parts(list(load_samples(world.shard))))
    assert all(batch.tokens.numel() <= 100 for batch in found)
    assert sum(len(batch.tokens) for batch in found) == len(world.samples)


def test_a_plan_takes_every_sample_once_an_epoch() -> None:
    batches = plan([5, 9, 7, 8] * 10, [2] * 40, 8, (0, 0))
    assert sorted(index for batch in batches for index in batch) == list(range(40))
    assert batches != plan([5, 9, 7, 8] * 10, [2] * 40, 8, (0, 1))


def test_the_loss_and_its_gradient_are_those_of_a_dense_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 8, generator=generator, requires_grad=True)
    head = torch.randn(40, 8, generator=generator)
    ids = torch.stack([torch.randperm(40, generator=generator)[:3] for _ in range(300)])
    law = torch.rand(300, 3, generator=generator)
    law /= law.sum(1, keepdim=True)
    weight = torch.rand(300, generator=generator)
    dense = torch.zeros(300, 40).scatter(1, ids, law)
    expected = -(weight * (dense * torch.log_softmax(hidden @ head.T, 1)).sum(1)).sum()
    (gradient,) = torch.autograd.grad(expected, hidden)
    loss, best = head_loss(hidden, head, ids, law, weight)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(hidden.grad, gradient, rtol=1e-4, atol=1e-5)
    assert best.tolist() == (hidden @ head.T).argmax(1).tolist()


def test_tau_counts_rounds_of_decoding() -> None:
    """Learned 2…9: rounds draft behind the last token that there is, from the features of the one before it."""
    learned = torch.zeros(1, 10, dtype=torch.bool)
    learned[0, 2:] = True
    hits = torch.zeros(4, 1, 10, dtype=torch.bool)
    # From base 0 nothing holds: token 2 is the target's own.
    hits[:2, 0, 1] = True  # two accepted: tokens 3, 4 and the target's own 5
    hits[1, 0, 4] = True  # the second without the first is worth nothing: token 6
    hits[:4, 0, 5] = True  # the text ends after 7, 8 and 9
    tally = Tally()
    tally.add(Batch(*[torch.zeros(0)] * 2, learned, *[torch.zeros(0)] * 2), hits)  # type: ignore[misc]
    result = tally.result()
    assert result.tau == pytest.approx(8 / 4)
    assert result.by_step[0] == pytest.approx(2 / 8)
