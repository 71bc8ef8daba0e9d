"""What joins a draft head to its target: which of the target's hidden states it was trained on, and which tokens its logits are for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import Bundle, EngineEntry
from specbuild.errors import BundleError


class Joint:
    """Of one head and one target, which have the same hidden size."""

    def __init__(self, head: EngineEntry, target: EngineEntry, ids: NDArray[np.int64] | None = None) -> None:
        """``ids`` [V of the head]: the target's token of each of the head's; None: the same ones."""
        missing = sorted(set(head.taps) - set(target.taps))
        if missing:
            raise BundleError(f"the {head.role} head takes hidden state {missing[0]}, which the target does not give out; build it anew")
        places = {tap: place for place, tap in enumerate(target.taps)}
        size = target.hidden_size
        self._columns = np.concatenate([np.arange(size) + places[tap] * size for tap in head.taps])
        self._ids = ids
        self._row = np.full(target.vocab_size, -np.inf, np.float32)

    @classmethod
    def of(cls, bundle: Bundle, role: str) -> Joint:
        """Of the head ``role`` and the target of ``bundle``.

        Raises:
            BundleError: the bundle lacks one of them, or they do not fit.
        """
        head = bundle.engine(role)
        return cls(head, bundle.engine("target"), None if head.d2t is None else np.load(bundle.path / head.d2t))

    def features(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """The head's features [n,H·taps] of the target's hidden states [n,W]; a copy."""
        return hidden[:, self._columns]

    def row(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits over the target's tokens, from the head's own [V]: those that it cannot draft have none. Valid until the next call."""
        if self._ids is None:
            return logits
        self._row[self._ids] = logits
        return self._row
