"""From a recipe to a trained head: texts, draft vocabulary, features, training, export. Each stage goes on where it was killed."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

import specbuild
from specbuild.bundle import canonical_json, file_digest
from specbuild.errors import UsageError
from specbuild.recipe import Recipe, TrainedRole

from ..compilers.base import CompileJob
from ..preparation import Preparation, prepare
from . import vocabulary
from .corpus import Text, load_texts, save_texts, shard_file, whole
from .evaluation import Acceptance
from .export import export
from .features import Sample, load_samples, made_for, write_features
from .initial import initial
from .reader import Reader
from .sources import Source
from .specs import head_spec, kept_taps
from .trainer import Progress, Settings, Trainer
from .vocabulary import DraftVocabulary

HELD_OUT = 32
"""Every so many-th text is not trained on."""


@dataclass(frozen=True)
class Wanted:
    """What is to be trained, and on how much."""

    role: TrainedRole
    recipe: Recipe
    """Of the target; draft model and heads of its own do not matter. For an adapter it says behind which layer the exit is."""
    tokens: int
    """Learned tokens of text; fewer where the source ends."""
    settings: Settings
    draft_vocabulary: int
    origin: str
    """Of the texts: for provenance, and part of what names the work folder."""
    threads: int

    @property
    def exit_layer(self) -> int | None:
        """Layers that an adapter comes after; None: a draft head is wanted."""
        section = self.recipe.speculation.early_exit
        return section.layers if self.role == "early_exit" and section is not None else None

    @property
    def name(self) -> str:
        """Of what is trained, among all that the same texts may serve."""
        return self.role if self.exit_layer is None else f"{self.role}-{self.exit_layer}"


@dataclass(frozen=True)
class Trained:
    """A finished head."""

    folder: Path
    held_out: Acceptance
    seconds: float
    """Of this call: where it went on from a killed one, the rest."""


def train(
    wanted: Wanted,
    open_source: Callable[[], Source],
    home: Path,
    out: Path,
    *,
    say: Callable[[str], None],
    report: Callable[[Progress], None],
) -> Trained:
    """Train a head and write it to ``out``.

    Args:
        open_source: Called where texts are missing: it may load engines.
        home: Of the store; texts and features are kept in its folder ``training``.

    Raises:
        UsageError: the texts hold nothing to learn.
        CheckpointError, UnsupportedError, EnvironmentLacksError: of the target.
    """
    began = time.perf_counter()
    torch.set_num_threads(wanted.threads)
    preparation = prepare(wanted.recipe)
    work = _work_folder(home, wanted, preparation)
    texts = _texts(wanted, open_source, work / "texts", say)
    chosen = _vocabulary(wanted, preparation, texts)
    samples = _samples(wanted, preparation, texts, chosen, work, say)
    if len(samples) < 2:
        raise UsageError(f"{wanted.origin}: {len(samples)} texts with something to learn; give more text, or leave it to the target")
    last = min(HELD_OUT, len(samples)) - 1
    held_out = samples[last::HELD_OUT]
    # Every position teaches, the user's words too; what is measured is the answers.
    learned = [replace(sample, learned=np.ones_like(sample.learned)) for index, sample in enumerate(samples) if index % HELD_OUT != last]
    trainer = _trainer(wanted, preparation, chosen)
    say(f"training {wanted.name}: {wanted.settings.steps} steps over {sum(int(s.learned.sum()) for s in learned):,} tokens")
    shards = {file.name: file_digest(file) for file in texts}
    checkpoint = work / f"{wanted.name}-{_digest([asdict(wanted.settings), chosen.digest, shards])[:12]}.pt"
    reached = trainer.run(learned, held_out, checkpoint, report)
    facts = _provenance(wanted, preparation, shards, len(learned), reached)
    export(out, trainer.spec, trainer.parameters, chosen.ids, preparation.models["target"].config, facts)
    say(f"texts and features are kept in {work}; remove it when no other head is to be trained")
    return Trained(out, reached, time.perf_counter() - began)


def _work_folder(home: Path, wanted: Wanted, preparation: Preparation) -> Path:
    """The same for all heads that may share texts and features."""
    target = wanted.recipe.target
    content = [preparation.models["target"].digest, target.precision, target.max_seq_len, wanted.settings.seed, wanted.origin]
    return home / "training" / f"{wanted.recipe.name}-{_digest(content)[:12]}"


def _texts(wanted: Wanted, open_source: Callable[[], Source], folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Shards of text until there are enough learned tokens."""
    files: list[Path] = []
    source: Source | None = None
    have = 0
    for number in count():
        if have >= wanted.tokens:
            break
        file = shard_file(folder, number)
        if not whole(file):
            source = source or open_source()
            found = source.shard(number, files)
            if not found:
                break
            save_texts(file, found)
        have += sum(int(text.learned.sum()) for text in load_texts(file))
        files.append(file)
        say(f"texts: {have:,} of {wanted.tokens:,} tokens")
    return files


def _vocabulary(wanted: Wanted, preparation: Preparation, texts: list[Path]) -> DraftVocabulary:
    checkpoint, spec = preparation.checkpoints["target"], preparation.models["target"].spec
    always = [*checkpoint.eos_token_ids, *([] if checkpoint.bos_token_id is None else [checkpoint.bos_token_id])]
    return vocabulary.choose(_every(texts), size=wanted.draft_vocabulary, total=spec.vocab_size, always=always)


def _every(shards: list[Path]) -> Iterator[Text]:
    for shard in shards:
        yield from load_texts(shard)


def _samples(
    wanted: Wanted, preparation: Preparation, texts: list[Path], chosen: DraftVocabulary, work: Path, say: Callable[[str], None]
) -> list[Sample]:
    """Every text that has something to learn, its features made if need be: heads share theirs, an exit has some of its own."""
    weights, spec = preparation.weights["target"], preparation.models["target"].spec
    head = weights.read("head")[chosen.ids]
    taps = kept_taps(spec, wanted.exit_layer)
    folder = work / ("features" if wanted.exit_layer is None else f"features-{wanted.exit_layer}")
    reader: Reader | None = None
    samples: list[Sample] = []
    for number, shard in enumerate(texts, 1):
        file = folder / shard.name
        if not made_for(chosen, file):
            if reader is None:
                job = CompileJob.of(wanted.recipe, "target")
                reader = Reader(spec, weights, job, taps, work / "reader", wanted.threads)
            write_features(shard, file, reader, head, chosen)
            say(f"features: shard {number} of {len(texts)}")
        samples += [sample for sample in load_samples(file) if sample.learned[2:].any()]
    return samples


def _trainer(wanted: Wanted, preparation: Preparation, chosen: DraftVocabulary) -> Trainer:
    weights, target = preparation.weights["target"], preparation.models["target"].spec
    spec = head_spec(wanted.role, target, len(chosen.ids), wanted.exit_layer)
    return Trainer(
        spec,
        kept_taps(target, wanted.exit_layer),
        initial(spec, weights, target.num_layers, seed=wanted.settings.seed),
        torch.from_numpy(weights.read("embedding")),
        torch.from_numpy(weights.read("head")[chosen.ids]),
        torch.from_numpy(chosen.ids),
        target.norm_eps,
        wanted.settings,
    )


def _provenance(
    wanted: Wanted, preparation: Preparation, shards: Mapping[str, str], learned: int, reached: Acceptance
) -> Mapping[str, Any]:
    """Where a head comes from, to the bit."""
    return {
        "role": wanted.role,
        "target": {"checkpoint": wanted.recipe.checkpoint, "digest": preparation.models["target"].digest},
        "precision": wanted.recipe.target.precision,
        "texts": {"origin": wanted.origin, "learned": learned, "shards": dict(shards)},
        "settings": asdict(wanted.settings) | {"draft_vocabulary": wanted.draft_vocabulary, "tokens": wanted.tokens},
        "held_out": {"tau": round(reached.tau, 3), "acceptance": [round(share, 3) for share in reached.by_step]},
        "tools": {"specbuild": specbuild.__version__, "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "numpy", "onnxruntime")},
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
