"""Tensors in one safetensors file or in several with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, which safetensors needs to read it
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from specbuild.errors import CheckpointError, UnsupportedError

from .base import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = ("pytorch_model*.bin", "medusa_lm_head.pt")
DTYPES = ("F32", "F16", "BF16", "F64")
MAP_DTYPES = ("I64", "I32", "BOOL")
"""Of the maps between token ids that draft heads bring along; as float32 such ids are still exact."""


@dataclass(frozen=True)
class SafetensorsFiles:
    """``TensorStore`` over safetensors files."""

    location: Mapping[str, Path]
    """Tensor → the file that holds it."""
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted(set(self.location.values())))

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.location))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def read(self, name: str) -> NDArray[np.float32]:
        with _opened(self.location[name]) as file:
            tensor: NDArray[np.float32] = np.ascontiguousarray(file.get_tensor(name), dtype=np.float32)
        return tensor


def open_safetensors(folder: Path, dtypes: tuple[str, ...] = DTYPES) -> SafetensorsFiles:
    """The tensors of a Hugging Face folder, of types ``dtypes``; every file's header and length are checked.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt, or the index disagrees with the files.
        UnsupportedError: there are no safetensors, or a tensor's type is not one that is read.
    """
    index = folder / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: has no weight_map; download the file again")
        files = sorted({folder / str(name) for name in weight_map.values()})
    else:
        weight_map = None
        files = [_single_file(folder)]
    location: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        for name, shape in _inspect(path, dtypes).items():
            location[name], shapes[name] = path, shape
    for name, file in (weight_map or {}).items():
        if location.get(name) != folder / file:
            raise CheckpointError(f"{index}: says that {file} holds {name}, which it does not; download both again")
    return SafetensorsFiles(location, shapes)


def _single_file(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors"))
    if folder / SINGLE in found:
        return folder / SINGLE
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(f"{folder}: {len(found)} safetensors files and no {INDEX}; download the index too")
    pickled = sorted(file for pattern in PICKLED for file in folder.glob(pattern))
    if pickled:
        raise UnsupportedError(
            f"{folder}: only {pickled[0].name}, whose pickle format can run code when read; convert it to safetensors (a model, with "
            "transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW); a draft head, with safetensors.torch: "
            f'save_file(torch.load("{pickled[0].name}", weights_only=True), "{SINGLE}"))'
        )
    raise CheckpointError(f"{folder}: no safetensors file; is the download complete?")


def _inspect(path: Path, dtypes: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118  the handle is no mapping
            view = file.get_slice(name)
            if view.get_dtype() not in dtypes:
                raise UnsupportedError(f"{path}: tensor {name} has type {view.get_dtype()}; supported: {', '.join(dtypes)}")
            shapes[name] = tuple(view.get_shape())
    return shapes


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing, though {INDEX} names it; download it") from None
    except (OSError, SafetensorError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise CheckpointError(f"{path}: truncated or corrupt ({error}; {_extent(path, size)}); download it again") from error


def _extent(path: Path, size: int) -> str:
    """How long the file is and, when its header can be read, how long it should be."""
    return f"{size} bytes on disk" if (needed := _needed(path)) is None else f"{size} bytes on disk, its header describes {needed}"


def _needed(path: Path) -> int | None:
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > path.stat().st_size:
            return 8 + length
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
    return 8 + length + max(ends, default=0)
