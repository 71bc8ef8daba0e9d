"""The model as Triton loads it; all that it does is in ``specbuild.triton.backend``."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from specbuild.triton.backend import Backend


class TritonPythonModel:
    """One instance: a bundle's engines and the service over them."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the bundle that ``SPECBUILD_BUNDLE`` or the parameter ``bundle`` names."""
        self._backend = Backend.open(pb_utils, args)

    def execute(self, requests: list[Any]) -> None:
        """Responses go out through each request's sender."""
        self._backend.execute(requests)

    def finalize(self) -> None:
        """End what runs."""
        self._backend.close()
