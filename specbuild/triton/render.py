"""A model repository for bundles: ``config.pbtxt`` made from the table of fields through Triton's own message, and read back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from specbuild.errors import UsageError

from .fields import INPUTS, OUTPUTS

MODEL = Path(__file__).parent.parent / "triton_repo" / "specbuild" / "1" / "model.py"
HEADER = "# Made by `specbuild triton render` from specbuild/triton/fields.py.\n"
Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class ModelSettings:
    """One model of a repository."""

    name: str = "specbuild"
    bundle: Path | None = None
    """None: the server's environment names it (SPECBUILD_BUNDLE)."""
    device: Device = "cpu"
    count: int = 1
    """Instances; each is a process with engines of its own."""
    gpus: tuple[int, ...] = ()
    parameters: dict[str, str] = field(default_factory=dict)
    """Beside the bundle: ``threads``, ``queue_limit``."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.name) or self.name.startswith("."):
            raise UsageError(f"the model name {self.name!r} is impossible; use letters, digits, '_', '-' and '.'")
        if self.count < 1:
            raise UsageError(f"count is {self.count}, but a model has at least one instance")
        if self.gpus and self.device == "cpu":
            raise UsageError(f"gpus are {list(self.gpus)}, but the device is cpu; leave one of them out")


def config(settings: ModelSettings) -> Any:
    """The ``ModelConfig`` message of a model."""
    message = model_config_pb2.ModelConfig(name=settings.name, backend="python", max_batch_size=0)
    message.model_transaction_policy.decoupled = True
    for entry in INPUTS:
        data_type = model_config_pb2.DataType.Value(entry.kind.type)
        message.input.add(name=entry.name, data_type=data_type, dims=[entry.kind.dims], optional=True)
    for output in OUTPUTS:
        message.output.add(name=output.name, data_type=model_config_pb2.DataType.Value(output.kind.type), dims=[output.kind.dims])
    kind = model_config_pb2.ModelInstanceGroup.Kind.Value(f"KIND_{settings.device.upper()}")
    message.instance_group.add(count=settings.count, kind=kind, gpus=settings.gpus)
    parameters = dict(settings.parameters)
    if settings.bundle is not None:
        parameters["bundle"] = str(settings.bundle)
    for name, value in sorted(parameters.items()):
        message.parameters[name].string_value = value
    return message


def to_text(message: Any) -> str:
    """``config.pbtxt`` of a message."""
    return HEADER + str(text_format.MessageToString(message))


def from_text(text: str) -> Any:
    """The message of a ``config.pbtxt``.

    Raises:
        UsageError: it is not one; says line and column.
    """
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise UsageError(f"config.pbtxt: {error}") from error


def render(models: Sequence[ModelSettings], folder: Path) -> list[Path]:
    """Write a repository with ``models`` into ``folder``, which is made or must be empty; returns the models' folders.

    Raises:
        UsageError: the folder has something in it, or two models have one name.
    """
    names = [model.name for model in models]
    if len(set(names)) != len(names):
        raise UsageError(f"the models are called {', '.join(names)}; each needs a name of its own")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder; every folder in a repository is taken for a model, so give a new one")
    made = []
    for model in models:
        version = folder / model.name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_bytes(MODEL.read_bytes())
        (version.parent / "config.pbtxt").write_text(to_text(config(model)), encoding="utf-8")
        made.append(version.parent)
    return made
