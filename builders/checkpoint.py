"""Opening a checkpoint, wherever it lies."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from specbuild.errors import CheckpointError

from .checkpoints.base import Checkpoint, ModelFiles, TokenizerFiles
from .checkpoints.folder import open_folder, open_head_folder
from .checkpoints.gguf_file import open_gguf
from .checkpoints.hub import download
from .checkpoints.installed_package import find_in_package

__all__ = ["Checkpoint", "ModelFiles", "TokenizerFiles", "open_checkpoint", "open_head"]

SCHEMES = "package:NAME, hf:ORG/NAME or configs:NAME"


def open_checkpoint(source: str) -> Checkpoint:
    """The checkpoint at ``source``: a Hugging Face folder, a .gguf file, or what ``locate`` finds.

    Config and tokenizer are read and the extent of every weight file is checked; no tensor is read yet.

    Raises:
        CheckpointError: there is nothing there, or it is truncated, corrupt or incomplete.
        UnsupportedError: its format is not read.
        EnvironmentLacksError: the package is not installed, or the hub cannot be reached.
    """
    path = locate(source)
    if path.is_dir():
        return open_folder(path, source)
    if not path.exists():
        raise CheckpointError(f"{source}: no such file or folder; name a Hugging Face folder, a .gguf file, {SCHEMES}")
    if path.suffix != ".gguf":
        raise CheckpointError(f"{source}: neither a folder nor a .gguf file; name the folder that holds it")
    return open_gguf(path, source)


def open_head(source: str) -> ModelFiles:
    """The draft head at ``source``: a folder in a published layout, or what ``locate`` finds. Read and checked as a checkpoint is.

    Raises:
        CheckpointError, UnsupportedError, EnvironmentLacksError: as ``open_checkpoint``.
    """
    path = locate(source)
    if not path.is_dir():
        raise CheckpointError(f"{source}: no such folder; name the folder of a draft head, {SCHEMES}")
    return open_head_folder(path, source)


def locate(source: str) -> Path:
    """Where ``package:NAME``, ``hf:ORG/NAME[@revision]`` (downloaded) or ``configs:NAME`` (shipped with specbuild) lies; else a path.

    Raises:
        UsageError, CheckpointError, EnvironmentLacksError: a package or a model of that name is not to be had.
    """
    scheme, colon, name = source.partition(":")
    if colon and scheme == "package":
        return find_in_package(name)
    if colon and scheme == "hf":
        return download(name)
    if colon and scheme == "configs":
        return Path(str(resources.files("specbuild.configs"))) / name
    return Path(source).expanduser()
