"""Optimisation profiles: the ranges of batch B, new tokens S and wanted rows R that a plan is tuned for.

TensorRT picks kernels for the middle value of a range, so decoding and prefilling have a profile each. The runtime reads
the ranges back from the plan: their order is no part of the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbuild.errors import BuildError


@dataclass(frozen=True)
class Range:
    """Smallest, tuned-for and largest value of a dimension."""

    low: int
    tuned: int
    high: int


@dataclass(frozen=True)
class Profile:
    """Ranges by the name that the graph gives its symbolic dimensions."""

    name: str
    ranges: dict[str, Range]

    def shapes(self, tensor: str, dims: Sequence[int | str]) -> tuple[list[int], list[int], list[int]]:
        """Smallest, tuned-for and largest shape of an input whose dimensions are numbers or symbols.

        Raises:
            BuildError: a symbol has no range.
        """
        try:
            ranges = [Range(dim, dim, dim) if isinstance(dim, int) else self.ranges[dim] for dim in dims]
        except KeyError as error:
            raise BuildError(
                f"input {tensor!r} has the dimension {error.args[0]!r}; profile {self.name!r} knows {', '.join(self.ranges)}"
            ) from None
        return [r.low for r in ranges], [r.tuned for r in ranges], [r.high for r in ranges]


def profiles(*, max_batch_size: int, max_step: int, max_prefill: int) -> tuple[Profile, ...]:
    """Decode or verify: S = 1 … max_step, tuned for half the longest draft. Prefill: S = 1 … max_prefill, tuned for a
    whole piece of one sequence; of a piece no more rows are wanted than a verifying pass wants."""
    batch = (max_batch_size + 1) // 2
    verify = {"B": Range(1, batch, max_batch_size), "S": Range(1, max_step // 2 + 1, max_step), "R": Range(1, max_step // 2 + 1, max_step)}
    prefill = {"B": Range(1, 1, max_batch_size), "S": Range(1, max_prefill, max_prefill), "R": Range(1, 1, max_step)}
    return Profile("verify", verify), Profile("prefill", prefill)


def add_to(config: Any, builder: Any, network: Any, wanted: Sequence[Profile]) -> None:
    """Give each profile to the builder's configuration, in order.

    Raises:
        BuildError: the graph has a dimension without a range, or TensorRT refuses a profile.
    """
    for profile in wanted:
        made = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            dims = [size if size >= 0 else tensor.get_dimension_name(axis) or f"axis {axis}" for axis, size in enumerate(tensor.shape)]
            made.set_shape(tensor.name, *profile.shapes(tensor.name, dims))
        if config.add_optimization_profile(made) < 0:
            raise BuildError(f"TensorRT refuses the {profile.name!r} profile {profile.ranges}")
