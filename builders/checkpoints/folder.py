"""A Hugging Face folder as a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specbuild.errors import CheckpointError, UnsupportedError

from .base import Checkpoint, ModelFiles, TokenizerFiles, read_json
from .safetensors_files import DTYPES, MAP_DTYPES, open_safetensors


def open_folder(folder: Path, source: str) -> Checkpoint:
    """Read config and tokenizer, and check the weight files.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt.
        UnsupportedError: the weights or the tokenizer are in a format that is not read.
    """
    if not (folder / "config.json").exists():
        inside = sorted(folder.glob("*.gguf"))
        hint = f"name the file itself: {inside[0]}" if inside else "name a Hugging Face folder or a .gguf file"
        raise CheckpointError(f"{folder}: no config.json here; {hint}")
    return Checkpoint(source, read_json(folder / "config.json"), open_safetensors(folder), read_tokenizer(folder))


def open_head_folder(folder: Path, source: str) -> ModelFiles:
    """As ``open_folder``, for a draft head: it has no tokenizer, and maps of token ids among its tensors.

    Raises:
        CheckpointError, UnsupportedError: as ``open_folder``.
    """
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{folder}: no config.json here; name the folder of a draft head (config.json and safetensors)")
    return ModelFiles(source, read_json(folder / "config.json"), open_safetensors(folder, (*DTYPES, *MAP_DTYPES)))


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """tokenizer.json as it is, the chat template and the generation config of ``folder``."""
    file = folder / "tokenizer.json"
    if not file.exists():
        if (folder / "tokenizer.model").exists():
            raise UnsupportedError(
                f"{folder}: only tokenizer.model; convert it to tokenizer.json "
                "(transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"
            )
        raise CheckpointError(f"{folder}: no tokenizer.json; is the download complete?")
    read_json(file)
    return TokenizerFiles(file.read_bytes(), _chat_template(folder), _optional(folder / "generation_config.json"))


def _chat_template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file}: cannot be read ({error}); download the file again") from error
    value = _optional(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):  # several named ones: transformers' older form
        named = [item for item in value if isinstance(item, dict)]
        value = next((item.get("template") for item in named if item.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}
