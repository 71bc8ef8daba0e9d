"""Opening a checkpoint, wherever it lies."""

from __future__ import annotations

from pathlib import Path

from specbuild.errors import CheckpointError

from .checkpoints.base import Checkpoint, TokenizerFiles
from .checkpoints.folder import open_folder
from .checkpoints.gguf_file import open_gguf
from .checkpoints.hub import download
from .checkpoints.installed_package import find_in_package

__all__ = ["Checkpoint", "TokenizerFiles", "open_checkpoint"]


def open_checkpoint(source: str) -> Checkpoint:
    """The checkpoint at ``source``: a Hugging Face folder, a .gguf file, ``package:NAME`` or ``hf:ORG/NAME[@revision]``.

    Config and tokenizer are read and the extent of every weight file is checked; no tensor is read yet.

    Raises:
        CheckpointError: there is nothing there, or it is truncated, corrupt or incomplete.
        UnsupportedError: its format is not read.
        EnvironmentLacksError: the package is not installed, or the hub cannot be reached.
    """
    scheme, colon, name = source.partition(":")
    if colon and scheme == "package":
        path = find_in_package(name)
    elif colon and scheme == "hf":
        path = download(name)
    else:
        path = Path(source).expanduser()
    if path.is_dir():
        return open_folder(path, source)
    if not path.exists():
        raise CheckpointError(f"{source}: no such file or folder; name a Hugging Face folder, a .gguf file, package:NAME or hf:ORG/NAME")
    if path.suffix != ".gguf":
        raise CheckpointError(f"{source}: neither a folder nor a .gguf file; name the folder that holds it")
    return open_gguf(path, source)
