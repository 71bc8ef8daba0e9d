"""A tiny target whose heads are trained on what it says, and a teacher that is no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from head_support import LAYERS, save_target
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from specbuild.builders.compilers.base import CompileJob
from specbuild.builders.preparation import Preparation, prepare
from specbuild.builders.training import vocabulary
from specbuild.builders.training.corpus import Text, save_texts
from specbuild.builders.training.features import Sample, load_samples, write_features
from specbuild.builders.training.initial import initial
from specbuild.builders.training.reader import Reader
from specbuild.builders.training.specs import head_spec, kept_taps
from specbuild.builders.training.teacher import Wish
from specbuild.builders.training.trainer import Settings, Trainer
from specbuild.builders.training.vocabulary import DraftVocabulary
from specbuild.recipe import Recipe, TrainedRole

END = 256
RING = 40
TURN = 8.0


def recipe(folder: Path, early_exit: dict[str, Any] | None = None, **heads: Any) -> Recipe:
    checkpoint = folder / "target"
    if not checkpoint.exists():
        save_target(checkpoint)
    speculation = {"method": "off", "heads": heads, "early_exit": early_exit}
    target = {"precision": "float32", "max_seq_len": 128}
    return Recipe.model_validate({"name": "tiny", "checkpoint": str(checkpoint), "target": target, "speculation": speculation})


def save_cycle(folder: Path, *, turned: bool) -> None:
    """A target that can be learned: its layers add nothing, and after each token of a ring of RING it wants the next one. ``turned``: the
    last layer makes that another one, which always follows the same token."""
    save_target(folder, tie_word_embeddings=False)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            last = name.endswith(f"{LAYERS - 1}.mlp.down_proj.weight")
            tensor[:] = TURN * tensor if turned and last else 0
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = np.zeros_like(embedding)
    tensors["lm_head.weight"][:RING] = 2 * np.roll(embedding[:RING], 1, axis=0)
    save_file(tensors, folder / "model.safetensors")


def written(reader: Reader, head: NDArray[np.float32], random: np.random.Generator, length: int = 40) -> Text:
    """What the target says, greedily, after four tokens of chance."""
    tokens = random.integers(0, RING, 4).tolist()
    while len(tokens) < length:
        tokens.append(int((head @ reader.read(tokens)[-1, -head.shape[1] :]).argmax()))
    return Text("greedy", np.array(tokens, np.int32), np.arange(length) >= 4)


class World:
    """A target prepared, with samples on disk."""

    def __init__(self, folder: Path, texts: int = 24, exit_layer: int | None = None) -> None:
        self.folder, self.exit_layer = folder, exit_layer
        # What is so small is done before a second thread has begun, and those of a busy machine would wait for each other.
        torch.set_num_threads(1)
        save_cycle(folder / "target", turned=exit_layer is not None)
        self.recipe = recipe(folder)
        self.preparation: Preparation = prepare(self.recipe)
        self.target, self.weights = self.preparation.models["target"].spec, self.preparation.weights["target"]
        taps, job = kept_taps(self.target, exit_layer), CompileJob.of(self.recipe, "target")
        self.reader = Reader(self.target, self.weights, job, taps, folder / "reader", threads=1)
        random, head = np.random.default_rng(3), self.weights.read("head")
        self.texts = [written(self.reader, head, random) for _ in range(texts)]
        self.vocabulary: DraftVocabulary = vocabulary.choose(self.texts, size=64, total=self.target.vocab_size, always=[END])
        save_texts(folder / "texts.safetensors", self.texts)
        self.shard = folder / "features.safetensors"
        write_features(folder / "texts.safetensors", self.shard, self.reader, head[self.vocabulary.ids], self.vocabulary)
        self.samples: list[Sample] = list(load_samples(self.shard))

    def trainer(self, role: TrainedRole, steps: int, **settings: Any) -> Trainer:
        ids = self.vocabulary.ids
        spec = head_spec(role, self.target, len(ids), self.exit_layer)
        return Trainer(
            spec,
            kept_taps(self.target, self.exit_layer),
            initial(spec, self.weights, self.target.num_layers, seed=0),
            torch.from_numpy(self.weights.read("embedding")),
            torch.from_numpy(self.weights.read("head")[ids]),
            torch.from_numpy(ids),
            self.target.norm_eps,
            Settings(steps=steps, **({"batch_tokens": 128, "evaluate_every": 1000, "checkpoint_every": 4} | settings)),
        )


class Parrot:
    """A teacher that writes letters by the seed, and now and then ends."""

    max_seq_len = 256
    ends = frozenset({END})

    def __init__(self) -> None:
        self.wishes: list[Wish] = []

    def write(self, wishes: Sequence[Wish]) -> list[tuple[int, ...]]:
        self.wishes += wishes
        return [self._one(wish) for wish in wishes]

    def _one(self, wish: Wish) -> tuple[int, ...]:
        random = np.random.default_rng([wish.seed, len(wish.prompt)])
        length = int(random.integers(1, wish.max_tokens + 1))
        tokens = random.integers(97, 123, length).tolist()
        return (*tokens[: length - 1], END) if length < wish.max_tokens else tuple(tokens)

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for index, part in enumerate(text.split("<|end|>")):
            tokens += ([END] if index else []) + [ord(character) for character in part]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join("<|end|>" if token == END else chr(token) for token in tokens)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int] | None:
        return self.encode("".join(f"[{message['role']}]{message['content']}<|end|>" for message in messages) + "[assistant]")
