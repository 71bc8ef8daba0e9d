"""The public face: open a bundle, generate."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from specbuild.bundle import Bundle
from specbuild.errors import CancelledError, RequestError, close_match
from specbuild.recipe import LOWER

from .acceptance import RULES
from .answer import Answer, Completion, Delta
from .draft_length import DraftLength
from .draft_times import DraftTimes
from .engines import load
from .intake import Intake, Prompt
from .loop import Loop
from .model import CachedModel
from .pace import STRETCH, Pace
from .proposers import METHODS, Means, Proposers
from .proposers.base import Proposer
from .request import Emission, Running
from .sampling import SamplingParams
from .scheduler import Scheduler
from .step_times import StepTimes
from .tokenizer import Tokenizer
from .verifier import Verifier

__all__ = ["Completion", "Delta", "Generator", "Prompt"]


class Generator:
    """A bundle's engines, loaded, with a round that batches whatever is asked of it. Not to be shared between threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        batch: int | None = None,
        verification: str | None = None,
        threads: int | None = None,
        proposers: Mapping[str, Proposer] | None = None,
        interactive: bool = False,
        choosing: bool = False,
        remember: int = 0,
    ) -> None:
        """See ``open``. ``choosing``: draft lengths that a request leaves open are chosen by measured cost. ``interactive``: that too, and
        long prompts are read in pieces between the rounds of others. ``remember``: tokens of past texts whose keys and values are kept.
        ``proposers``: method → proposer, beside those of the bundle."""
        self.bundle = bundle
        speculation = bundle.manifest.recipe.speculation
        if verification is not None and verification not in RULES:
            raise RequestError(f"verification {verification!r} is unknown.{close_match(verification, RULES)}")
        self.lossy = speculation.lossy if verification is None else None
        """The lossy rule that judges drafts, where the recipe says so and nobody asked for another."""
        rule = self.lossy or verification or speculation.verification
        entry = bundle.engine("target")
        self.rows = entry.max_batch_size if batch is None else batch
        if not 1 <= self.rows <= entry.max_batch_size:
            raise RequestError(f"batch is {batch}, but the engine was built for 1 to {entry.max_batch_size}; raise target.max_batch_size")
        self.entry = entry
        self.tokenizer = Tokenizer(bundle.path / entry.tokenizer, bundle.manifest.vocabulary)
        target = CachedModel(load(bundle.path, entry, threads=threads), self.rows, remember=remember, resident=interactive)
        # Not by way of this generator: a circle of references would keep its memory until a collection.
        self._proposers = Proposers(bundle, Means(self.rows, threads, remember, interactive, target), proposers or {})
        self.intake = Intake(bundle.manifest, entry, self.tokenizer, self._proposers, rule)
        scheduler = Scheduler(self.rows, entry.max_seq_len, entry.max_step - 1, self._draft_length() if interactive or choosing else None)
        self.loop = Loop(scheduler, Verifier(target), self._proposers, Pace(STRETCH if interactive else None))
        self._inboxes: dict[Hashable, deque[Emission]] = {}
        """Of each sequence that some stream still waits for: streams taken in turns share their rounds."""

    @classmethod
    def open(cls, path: str | PathLike[str], **options: Any) -> Generator:
        """A generator over the bundle at ``path``.

        Args:
            options: ``batch`` sequences at a time (default: as built), ``verification`` rule (default: the recipe's), CPU ``threads``.

        Raises:
            BundleError, VerificationError: it is no bundle, or not as it was built.
            EnvironmentLacksError: this machine cannot run its engines.
        """
        return cls(Bundle.open(Path(path)), **options)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the promise that output does not depend on speculation or neighbours."""
        notes = []
        if self.lossy is not None:
            notes.append(f"lossy: {self.lossy!r} acceptance (speculation.lossy) keeps drafts that change the law of the output")
        probe = self.entry.probe
        if probe is None:
            return (*notes, "the engine was built with --no-probe: whether its bits are invariant is not known", *self._notes_of_trees)
        if not probe.step_invariant:
            notes.append("the engine's bits depend on the number of new tokens: every pass is padded to the largest")
        if not probe.view_invariant:
            notes.append("the engine's bits depend on the cache view: the longest is always used")
        if not probe.batch_invariant and self.rows > 1:
            notes.append(
                "the engine's bits depend on the batch: other neighbours may give other tokens; open it with batch=1 to rule that out"
            )
        return (*notes, *self._notes_of_trees)

    @property
    def _notes_of_trees(self) -> tuple[str, ...]:
        """Where the recipe asks for them."""
        budget, against, probe = self.bundle.manifest.recipe.speculation.tree_budget, self.intake.against_trees, self.entry.probe
        if budget and against:
            return (f"tree_budget is {budget} in the recipe, but {against}; until then drafts are chains",)
        if budget and probe is not None and probe.tree_difference:
            off = f"behind rejected siblings the target's logits are up to {probe.tree_difference:.0e} off"
            return (f"{off}: a tree may change a token where two are as close as that",)
        return ()

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None) -> list[Completion]:
        """An answer to each prompt, in order.

        Args:
            prompts: Each plain text, token ids or chat messages.
            params: For all, or one for each; None: the defaults.

        Raises:
            RequestError: a prompt or a parameter is outside what the bundle allows; nothing is generated then.
        """
        done = {delta.index: delta.completion for delta in self.stream(prompts, params) if delta.completion is not None}
        return [done[index] for index in range(len(prompts))]

    def stream(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None) -> Iterator[Delta]:
        """As ``generate``, but as it comes: a delta for each running answer and round. Leaving the loop cancels what is left.

        Raises:
            RequestError: as ``generate``.
            CancelledError: while it comes: a round that other streams were waiting for too broke off in their hands.
        """
        if isinstance(prompts, str | Mapping) or any(isinstance(prompt, int | Mapping) for prompt in prompts):
            raise RequestError("prompts is a single prompt; give a list of prompts, if only of one")
        each = [params or SamplingParams()] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if not all(isinstance(param, SamplingParams) for param in each):
            raise RequestError(f"params is {params!r:.60}, but must be SamplingParams, or a list of them")
        if len(each) != len(prompts):
            raise RequestError(f"{len(each)} params for {len(prompts)} prompts; give one for all or one for each")
        sequences = [self.intake.sequence(prompt, param) for prompt, param in zip(prompts, each, strict=True)]
        return self._stream(sequences)

    def _stream(self, sequences: Sequence[Running]) -> Iterator[Delta]:
        places = {sequence.id: index for index, sequence in enumerate(sequences)}
        answers = [Answer(sequence) for sequence in sequences]
        inbox: deque[Emission] = deque()
        try:
            for sequence in sequences:
                self._inboxes[sequence.id] = inbox
                self.loop.scheduler.submit(sequence)
            while places:
                while not inbox:
                    if places.keys() - self._inboxes.keys():
                        raise CancelledError("a round that this stream shared with another broke off half-way; ask again")
                    self._round()
                emission = inbox.popleft()
                index = places[emission.id]
                if emission.finish_reason is not None:
                    del places[emission.id]
                yield answers[index].take(index, emission)
        finally:
            for sequence in sequences:
                self._inboxes.pop(sequence.id, None)
            for owner in places:
                self.loop.cancel(owner)

    def _round(self) -> None:
        """One round for every stream. Where it breaks off, caches and texts are no longer of one length: nobody can go on."""
        try:
            for emission in self.loop.round():
                self._inboxes[emission.id].append(emission)
        except BaseException:
            for owner in self._inboxes:
                self.loop.cancel(owner)
            self._inboxes.clear()
            raise

    def encode(self, prompt: Prompt) -> list[int]:
        """See ``Intake.encode``."""
        return self.intake.encode(prompt)

    def _draft_length(self) -> DraftLength | None:
        """Chosen by what was measured when the bundle was built; None where nothing was."""
        if self.entry.probe is None:
            return None
        engines = {engine.role: (engine, engine.probe) for engine in self.bundle.manifest.engines if engine.probe is not None}
        largest = {method: roles[-1] for method in METHODS if (roles := self.bundle.manifest.recipe.speculation.roles(method))}
        # Smaller models of a cascade cost little beside the largest, and save some of its passes.
        times = {}
        for method, role in largest.items():
            if role in engines:
                engine, probe = engines[role]
                shared = role == LOWER and self.entry.probe.step_invariant
                passes = StepTimes(probe.step_costs, engine.padded)
                times[method] = DraftTimes(passes, at_once=engine.predictions > 1, shared=shared)
        return DraftLength(self.entry.max_step - 1, StepTimes(self.entry.probe.step_costs, self.entry.padded), times)
