"""Published layouts of draft heads, one module each: a module of this folder that has a ``LAYOUT`` is one."""

from __future__ import annotations

import importlib
import pkgutil

from specbuild.errors import CheckpointError
from specbuild.recipe import HeadRole

from ..checkpoint import ModelFiles
from .base import Layout


def layouts(role: HeadRole) -> list[Layout]:
    """The layouts of ``role``, by the modules of this folder."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    found = [module.LAYOUT for module in modules if hasattr(module, "LAYOUT")]
    return [layout for layout in found if layout.role == role]


def layout_of(files: ModelFiles, role: HeadRole) -> tuple[Layout, str]:
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
    raise CheckpointError(
        f"{files.source}: no {role} head is in it (layouts that are read: {names}); "
        f"set speculation.heads.{role}.checkpoint to a head trained for this target, or remove speculation.heads.{role}"
    )
