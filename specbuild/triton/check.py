"""What a server would refuse of a model repository, found without one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from specbuild.bundle import Bundle
from specbuild.errors import SpecbuildError, close_match

from .backend import PARAMETERS, bundle_path, check_parameters
from .render import ModelSettings, config, from_text

KIND_GPU = ModelInstanceGroup.Kind.Value("KIND_GPU")


def check(repository: Path, environ: Mapping[str, str]) -> list[str]:
    """What is wrong, one sentence each; empty: a server takes it.

    Args:
        environ: Of the server to be.
    """
    if not repository.is_dir():
        return [f"{repository} is no folder"]
    models = [entry for entry in sorted(repository.iterdir()) if entry.is_dir()]
    if not models:
        return [f"{repository} has no model; `specbuild triton render` makes one"]
    return [f"{model.name}: {what}" for model in models for what in _model(model, environ)]


def _model(folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    file = folder / "config.pbtxt"
    if not file.is_file():
        yield "has no config.pbtxt, and every folder in a repository is taken for a model; remove it or add the file"
        return
    try:
        message = from_text(file.read_text(encoding="utf-8"))
    except (SpecbuildError, UnicodeDecodeError) as error:
        yield str(error)
        return
    if message.name not in ("", folder.name):
        yield f"config.pbtxt calls it {message.name!r}; a model is called as its folder"
    versions = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isdigit() and int(entry.name) > 0]
    if not versions:
        yield "has no version folder; the model's file belongs at 1/model.py"
    yield from (f"{version.name}/ has no model.py" for version in versions if not (version / "model.py").is_file())
    if message.backend != "python":
        yield f"its backend is {message.backend!r}, but must be 'python'"
        return
    yield from _shape(message)
    yield from _runs(message, environ)


def _shape(message: Any) -> Iterator[str]:
    """Differences from what the model reads and sends."""
    wanted = config(ModelSettings())
    if message.max_batch_size:
        yield f"max_batch_size is {message.max_batch_size}, but must be 0: requests are batched by the runtime"
    if not message.model_transaction_policy.decoupled:
        yield "model_transaction_policy.decoupled must be true: a request may have many responses"
    for kind in ("input", "output"):
        have = {entry.name: entry for entry in getattr(message, kind)}
        need = {entry.name: entry for entry in getattr(wanted, kind)}
        yield from (f"the {kind} {name} is missing" for name in need if name not in have)
        yield from (f"the {kind} {name} is unknown.{close_match(name, need)}" for name in have if name not in need)
        for name in need.keys() & have.keys():
            if have[name] != need[name]:
                yield f"the {kind} {name} differs: it must be {' '.join(str(need[name]).split())}"


def _runs(message: Any, environ: Mapping[str, str]) -> Iterator[str]:
    """What of its parameters and devices would not start here."""
    settings = {name: value.string_value for name, value in message.parameters.items()}
    yield from (f"the parameter {name!r} is unknown.{close_match(name, PARAMETERS)}" for name in settings if name not in PARAMETERS)
    try:
        check_parameters(settings)
        Bundle.open(bundle_path(settings, environ))
    except SpecbuildError as error:
        yield str(error)
    if any(group.kind == KIND_GPU for group in message.instance_group) and shutil.which("nvidia-smi") is None:
        yield "its instances are on a GPU, and this machine has none (no nvidia-smi)"
