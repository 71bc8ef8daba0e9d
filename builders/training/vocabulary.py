"""The draft vocabulary: the tokens that the target writes most often. A head's last matrix is the dear one; rare words are not worth it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .corpus import Text

PROMPT_WEIGHT = 0.2
"""Of a token that was read against one that was written: names and foreign words of a passage come back in answers to others."""
MULTIPLE = 64
"""Sizes are rounded up to this: kernels like it."""


@dataclass(frozen=True)
class DraftVocabulary:
    """Draft ids stand for these tokens of the target, in its order."""

    ids: NDArray[np.int64]
    """[V_draft] ascending."""

    @property
    def digest(self) -> str:
        """Of the ids: shards made for other ones are of no use."""
        return hashlib.sha256(self.ids.tobytes()).hexdigest()


def choose(texts: Iterable[Text], *, size: int, total: int, always: Iterable[int]) -> DraftVocabulary:
    """The ``size`` tokens of ``total`` that count most in ``texts``, those of ``always`` first."""
    counts = np.zeros(total)
    for text in texts:
        counts += np.bincount(text.tokens, np.where(text.learned, 1.0, PROMPT_WEIGHT), minlength=total)
    counts[list(always)] = np.inf
    size = min(-(-size // MULTIPLE) * MULTIPLE, total)
    # A stable order: of tokens that count alike the lower ids, which tokenizers give to the more common ones.
    return DraftVocabulary(np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int64))
