"""Plain decoding of a toy model, from the definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from toy_engine import EOS, VOCABULARY, ToyModel

from specbuild.runtime.acceptance import SeededRound
from specbuild.runtime.context import Context
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.transforms import Transforms


@dataclass(frozen=True)
class Plain:
    """What plain decoding gives."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    stop_reason: str | int | None
    rows: tuple[NDArray[np.float32], ...]
    """Logits that each token was chosen from."""


def plainly(model: ToyModel, generator: Generator, prompt: Sequence[int], params: SamplingParams, window: int | None = None) -> Plain:
    """One-by-one decoding from the definition: logits of the whole text so far, the law, the noise of the place."""
    eos = () if params.ignore_eos else (EOS,)
    transforms, context, rows = Transforms(params, VOCABULARY, (EOS,)), Context(prompt), []
    assert params.seed is not None
    while True:
        rows.append(model.after(context.tokens, window)[:VOCABULARY])
        token = SeededRound(params.seed, context.position).shared(transforms.law(rows[-1], context), 0)
        context.push(token)
        output = context.tokens[len(prompt) :]
        if token in (*eos, *params.stop_token_ids):
            reason = token if token in params.stop_token_ids else None
            return Plain(tuple(output), generator.tokenizer.decode(output[:-1]), "stop", reason, tuple(rows))
        text = generator.tokenizer.decode(output)
        found = [(text.index(stop), stop) for stop in params.stop if stop in text]
        if found:
            place, stop = min(found)
            return Plain(tuple(output), text[:place], "stop", stop, tuple(rows))
        if len(output) == params.max_tokens:
            return Plain(tuple(output), text, "length", None, tuple(rows))
