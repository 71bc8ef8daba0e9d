"""The engine as the runtime sees it: one forward pass over a contiguous run of cache rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import EngineEntry


@dataclass(frozen=True)
class Step:
    """Inputs of one pass over B sequences of S new tokens each, R logit rows wanted of each, cache view of T positions.

    A row shorter than S is padded on the right; what the padding writes lies past the row's committed length and is never attended to.
    """

    input_ids: NDArray[np.int64]
    """[B,S]"""
    position_ids: NDArray[np.int64]
    """[B,S]"""
    write_index: NDArray[np.int64]
    """[B] cache position of the first new token; write_index + S ≤ T."""
    attention_mask: NDArray[np.bool_]
    """[B,1,S,T] true = attend; every query row attends to at least one position."""
    logit_rows: NDArray[np.int64]
    """[B,R] which of the S tokens' logits are wanted."""
    features: NDArray[np.float32] | None = None
    """[B,S,H·taps] what the target knew at each token; of draft heads, which take no step without. Of a target's upper part [B,S,H], what
    its lower part made of each token."""
    previous: NDArray[np.float32] | None = None
    """[B,S,H] what the head itself knew at the token before; likewise."""


class KvStorage(Protocol):
    """The memory of a KV cache: keys and values [rows, kv_heads, view, head_dim] a layer. It knows no lengths; ``KvCache`` does."""

    rows: int
    view: int
    """T of the next pass."""

    def resize(self, view: int, lengths: NDArray[np.int64]) -> None:
        """Make the view at least ``view`` long, keeping the first ``lengths[row]`` positions of each row.

        Raises:
            CapacityError: ``view`` is above the engine's capacity.
        """
        ...

    def copy_row(self, source: KvStorage, row: int, target: int, length: int) -> None:
        """Write the first ``length`` positions of a row of ``source``, this storage or one like it, over the row ``target``."""
        ...

    def save(self, row: int, length: int) -> Any:
        """A copy of the first ``length`` positions of a row, for ``restore`` of storages like this one."""
        ...

    def restore(self, row: int, saved: Any, length: int) -> None:
        """Write the first ``length`` positions of what ``save`` gave to the start of a row; the view must be that long."""
        ...

    def move_tokens(self, row: int, sources: NDArray[np.int64], start: int) -> None:
        """Gather the positions ``sources`` (ascending, each ≥ its target) of a row to ``start, start + 1, …``."""
        ...

    def touch(self) -> None:
        """Take all the memory from the system now, rather than when a pass first writes there."""
        ...


class Engine(Protocol):
    """One compiled engine, loaded."""

    entry: EngineEntry

    def new_storage(self, rows: int) -> KvStorage:
        """Memory for ``rows`` sequences, empty."""
        ...

    def forward(self, step: Step, storage: KvStorage, first_row: int) -> NDArray[np.float32]:
        """Logits [B,R,V] of a pass over rows ``first_row … first_row + B − 1``; keys and values are written in place.

        The array is the engine's own and valid until its next pass.
        """
        ...

    @property
    def hidden(self) -> NDArray[np.float32] | None:
        """[B,S,W] hidden states of the last pass, the engine's own like the logits; None where it gives none out."""
        ...

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits [B,S,K,V] of a head that keeps no cache, from ``features`` [B,S,H]; the engine's own, as those of ``forward``."""
        ...
