"""Training: batches in, better weights out; a checkpoint now and then, from which it goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..head_spec import ExitAdapter, HeadSpec, LayerHead, MedusaHead
from .batches import Batch, parts, plan
from .evaluation import Acceptance, Tally
from .features import Sample
from .loss import head_loss
from .network import ExitNetwork, LayerNetwork, MedusaNetwork
from .optimizer import Optimizer
from .unroll import Step, bases, exit_steps, medusa_steps, unroll

GO_ON = (0.7, 0.5, 0.35)
"""Share of the bases that are unrolled to the second, third and fourth step: later drafts are rarer, and count so much less."""
FIRST_ALONE = 0.5
"""Share of the steps in which only first drafts are learned: they cost half, and later ones build on them."""
MEDUSA_WEIGHTS = (1.0, 0.8, 0.64, 0.51)
"""Of the losses of Medusa heads, one after the other."""


@dataclass(frozen=True)
class Settings:
    """How long and how fast."""

    steps: int
    batch_tokens: int = 1024
    """Learned tokens of a batch."""
    rate: float = 3e-3
    seed: int = 0
    evaluate_every: int = 100
    checkpoint_every: int = 50


@dataclass(frozen=True)
class Progress:
    """Where training is."""

    step: int
    loss: float
    """Of the first draft token, nats a token, mean since the last report."""
    hits: float
    """Share of first draft tokens that were right, likewise."""
    held_out: Acceptance | None


class Trainer:
    """One head being trained."""

    def __init__(
        self,
        spec: HeadSpec,
        kept: tuple[int, ...],
        parameters: dict[str, Tensor],
        embedding: Tensor,
        head: Tensor,
        ids: Tensor,
        eps: float,
        settings: Settings,
    ) -> None:
        """
        Args:
            kept: Taps of the samples' hidden states; those of ``spec`` lie side by side among them.
            embedding: [V,H] the target's.
            head: [V_draft,H] rows of the target's LM head.
            ids: [V_draft] the target's token of each draft id.
        """
        self.spec, self.parameters, self._settings = spec, parameters, settings
        self._head, self._ids = head.bfloat16(), ids
        first = kept.index(spec.taps[0])
        assert kept[first : first + len(spec.taps)] == spec.taps, f"taps {spec.taps} of {kept}"
        self._read = slice(first * spec.hidden_size, (first + len(spec.taps)) * spec.hidden_size)
        self._network: LayerNetwork | MedusaNetwork | ExitNetwork
        if isinstance(spec, MedusaHead):
            self._network = MedusaNetwork(spec, parameters)
        elif isinstance(spec, ExitAdapter):
            self._network = ExitNetwork(spec, parameters, eps)
        else:
            assert isinstance(spec, LayerHead)
            self._network = LayerNetwork(spec, parameters, embedding.bfloat16(), eps)
        self.optimizer = Optimizer(parameters, steps=settings.steps, rate=settings.rate)

    def run(
        self, samples: Sequence[Sample], held_out: Sequence[Sample], checkpoint: Path, report: Callable[[Progress], None]
    ) -> Acceptance:
        """Train until all steps are done, from ``checkpoint`` if it is there; returns what the finished head reaches."""
        settings = self._settings
        if checkpoint.exists():
            self.restore(checkpoint)
        losses: list[tuple[float, float]] = []
        for members in self._batches(samples):
            losses.append(self.learn(members))
            done = self.optimizer.done
            if done % settings.checkpoint_every == 0:
                self.save(checkpoint)
            if done % settings.evaluate_every == 0 or len(losses) == 10:
                measured = self.evaluate(held_out) if done % settings.evaluate_every == 0 else None
                loss, hits = (sum(values) / len(losses) for values in zip(*losses, strict=True))
                report(Progress(done, loss, hits, measured))
                losses.clear()
        self.save(checkpoint)
        return self.evaluate(held_out)

    def learn(self, samples: Sequence[Sample]) -> tuple[float, float]:
        """One step; (loss, share of right tokens) of the first draft token."""
        count = sum(int(sample.learned[2:].sum()) for sample in samples)
        first_loss = first_hits = 0.0
        for part, batch in enumerate(parts(samples)):
            chances = self._chances(len(bases(batch).texts), part)
            total = torch.zeros(())
            with torch.autocast("cpu", torch.bfloat16):
                for index, step in enumerate(self._steps(batch, chances)):
                    loss, best = self._loss(batch, step)
                    total = total + loss * (MEDUSA_WEIGHTS[index] if isinstance(self.spec, MedusaHead) else 1.0)
                    if index == 0:
                        first_loss, first_hits = first_loss + loss.item(), first_hits + self._hits(batch, step, best).sum().item()
            (total / count).backward()
        self.optimizer.step()
        return first_loss / count, first_hits / count

    @torch.no_grad()
    def evaluate(self, samples: Sequence[Sample]) -> Acceptance:
        """Acceptance of greedy drafts on ``samples``, all bases, all steps."""
        tally = Tally()
        for batch in parts(samples):
            hits = torch.zeros(len(GO_ON) + 1, *batch.tokens.shape, dtype=torch.bool)
            with torch.autocast("cpu", torch.bfloat16):
                for index, step in enumerate(self._steps(batch, None)):
                    _, best = self._loss(batch, step)
                    hits[index, step.rows.texts, step.rows.positions] = self._hits(batch, step, best)
            tally.add(batch, hits)
        return tally.result()

    def save(self, file: Path) -> None:
        """Write all that goes on from here; the file is whole or the one before."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        torch.save(
            {"parameters": {role: value.detach() for role, value in self.parameters.items()}, "optimizer": self.optimizer.state()}, partial
        )
        partial.replace(file)

    @torch.no_grad()
    def restore(self, file: Path) -> None:
        """Go on from what ``save`` wrote."""
        state = torch.load(file, weights_only=True)
        for role, value in state["parameters"].items():
            self.parameters[role].copy_(value)
        self.optimizer.restore(state["optimizer"])

    def _batches(self, samples: Sequence[Sample]) -> Iterator[list[Sample]]:
        """Those that are left, by the seed and the number of steps done alone."""
        settings, number, epoch = self._settings, 0, 0
        lengths, learned = [len(sample.tokens) for sample in samples], [int(sample.learned.sum()) for sample in samples]
        while number < settings.steps:
            for members in plan(lengths, learned, settings.batch_tokens, (settings.seed, epoch))[: settings.steps - number]:
                if number >= self.optimizer.done:
                    yield [samples[index] for index in members]
                number += 1
            epoch += 1

    def _steps(self, batch: Batch, chances: Tensor | None) -> Iterable[Step]:
        """The steps from every base; ``chances`` [R] in [0,1) says how far each goes, None: all the way."""
        start = bases(batch)
        features = batch.hidden[..., self._read]
        if isinstance(self._network, MedusaNetwork):
            return medusa_steps(self._network, batch, features, start)
        if isinstance(self._network, ExitNetwork):
            # Every step is the first of another base: there is nothing new to learn from those after it.
            return exit_steps(self._network, batch, features, start, 1 if chances is not None else len(GO_ON) + 1)
        everyone = torch.ones(len(start.texts), dtype=torch.bool)
        keep = [everyone if chances is None else chances < share for share in GO_ON]
        if chances is not None and self.optimizer.done < FIRST_ALONE * self._settings.steps:
            keep = []
        return unroll(self._network, batch, features, start, keep)

    def _chances(self, count: int, part: int) -> Tensor:
        """[count] of this step's part: the same whenever it is computed."""
        random = np.random.default_rng((self._settings.seed, self.optimizer.done, part))
        return torch.from_numpy(random.random(count, np.float32))

    def _loss(self, batch: Batch, step: Step) -> tuple[Tensor, Tensor]:
        at = step.rows.texts, step.targets - 1
        law = batch.law[at]
        # Where the text's own token has no draft id, what is left of the law is not the target's.
        weight = self._known(batch.tokens[step.rows.texts, step.targets]).float()
        return head_loss(step.out.to(self._head.dtype), self._head, batch.law_ids[at], law, weight)

    def _hits(self, batch: Batch, step: Step, best: Tensor) -> Tensor:
        return self._ids[best] == batch.tokens[step.rows.texts, step.targets]

    def _known(self, tokens: Tensor) -> Tensor:
        places = torch.searchsorted(self._ids, tokens).clamp(max=len(self._ids) - 1)
        return self._ids[places] == tokens
