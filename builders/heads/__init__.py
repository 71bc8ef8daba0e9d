"""Published layouts of draft heads, one module each: a module of this folder that has a ``LAYOUT`` is one."""

from __future__ import annotations

import importlib
import pkgutil

from specbuild.errors import CheckpointError
from specbuild.recipe import TrainedRole

from ..checkpoint import ModelFiles
from .base import Layout


def layouts(role: TrainedRole) -> list[Layout]:
    """The layouts of ``role``, by the modules of this folder."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    found = [module.LAYOUT for module in modules if hasattr(module, "LAYOUT")]
    return [layout for layout in found if layout.role == role]


def layout_of(files: ModelFiles, role: TrainedRole) -> tuple[Layout, str]:
    """The layout of ``files`` among those of ``role``, and the prefix of its tensors.

    Raises:
        CheckpointError: it has none of them.
    """
    known = layouts(role)
    for layout in known:
        prefix = layout.prefix(files)
        if prefix is not None:
            return layout, prefix
    names = ", ".join(layout.name for layout in known)
    raise CheckpointError(f"{files.source}: no {described(role)} is in it (layouts that are read: {names}); {mend(role)}")


def described(role: TrainedRole) -> str:
    """What messages call it."""
    return "early_exit adapter" if role == "early_exit" else f"{role} head"


def mend(role: TrainedRole) -> str:
    """What to change in a recipe that names a wrong one."""
    if role == "early_exit":
        return "set speculation.early_exit.adapter to one trained for this target and its speculation.early_exit.layers, or remove it"
    return f"set speculation.heads.{role}.checkpoint to a head trained for this target, or remove speculation.heads.{role}"
