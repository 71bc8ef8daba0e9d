"""A tiny target, whole and cut in two, and what tests ask of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import head_support
import numpy as np
from head_support import save_head, save_target
from numpy.typing import NDArray

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.probe import probe
from specbuild.recipe import Recipe
from specbuild.runtime.engines import load
from specbuild.runtime.generator import Generator
from specbuild.runtime.model import CachedModel
from specbuild.runtime.sampling import SamplingParams

CUT = 2
PROMPTS = [[65, 66, 67, 32, 68] * 6, [70], list(range(40, 75)), [90, 91, 92]]
Floats = NDArray[np.float32]


class Bundles:
    """The same target whole and cut, by precision; each built once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = save_target(folder / "target")
        self.heads = {"eagle3": {"checkpoint": str(save_head(folder / "eagle3", *head_support.eagle3())), "precision": "int8"}}
        self.made: dict[tuple[str, int], Bundle] = {}

    def __call__(self, precision: str, cut: int = 0) -> Bundle:
        if (precision, cut) not in self.made:
            speculation = {"heads": self.heads} | ({"early_exit": {"layers": cut}, "hybrid_model": "early_exit"} if cut else {})
            target = {"precision": precision, "max_seq_len": 160, "max_batch_size": 4}
            document = {"name": "cut", "checkpoint": str(self.checkpoint), "target": target, "speculation": speculation}
            store = Store(self.folder / "store")
            self.made[precision, cut] = build(Recipe.model_validate(document), store=store, probe=probe).bundle
        return self.made[precision, cut]


def model(bundle: Bundle, rows: int = 1) -> CachedModel:
    return CachedModel(load(bundle.path, bundle.engine("target")), rows)


def asked(method: str, temperature: float = 0.0, **others: Any) -> SamplingParams:
    return SamplingParams(temperature=temperature, speculation=method, **{"max_tokens": 40, "seed": 5, "ignore_eos": True, **others})


def plain(bundles: Bundles, params: SamplingParams, precision: str = "int8") -> list[tuple[int, ...]]:
    """What the whole target writes, each prompt alone."""
    opened = Generator(bundles(precision), batch=1)
    alone = [SamplingParams(**{**vars(params), "speculation": "off", "draft_len": None, "seed": seed}) for seed in range(len(PROMPTS))]
    return [opened.generate([prompt], each)[0].token_ids for prompt, each in zip(PROMPTS, alone, strict=True)]
