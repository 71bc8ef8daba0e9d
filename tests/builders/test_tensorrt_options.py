"""Every option of a recipe is honoured or refused, with and without a GPU and the library."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from decoder_support import RandomWeights, tiny_spec
from tensorrt_support import RTX, graph, recipe

from specbuild.builders.compilers import tensorrt, tensorrt_library
from specbuild.builders.compilers.base import CompileJob, compiler
from specbuild.builders.compilers.tensorrt import RTX_CAPABILITIES, TensorRTCompiler
from specbuild.builders.compilers.tensorrt_library import load
from specbuild.builders.store import Store
from specbuild.errors import EnvironmentLacksError, UnsupportedError


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"compute_capabilities": ["sm90"]}, UnsupportedError, "sm90: RTX does not target Hopper: use backend tensorrt"),
        ({"compute_capabilities": ["sm89", "sm100"]}, UnsupportedError, "sm100: RTX does not target data-centre Blackwell: use backend"),
        ({"compute_capabilities": ["sm61"]}, UnsupportedError, "sm61: RTX targets sm75, sm80, sm86, sm89, sm120, sm121"),
        ({"compute_capabilities": []}, EnvironmentLacksError, "tensorrt.compute_capabilities: empty means the GPU present"),
        ({"refit": True}, EnvironmentLacksError, "tensorrt.refit: a build with it needs a GPU"),
        ({"strip_weights": True}, UnsupportedError, "tensorrt.strip_weights: a bundle is self-contained"),
        ({"version_compatible": True}, UnsupportedError, "tensorrt.version_compatible: a bundle runs with the TensorRT version"),
        ({"timing_cache": True}, UnsupportedError, "tensorrt.timing_cache: TensorRT-RTX times no kernels"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(changes: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        RTX.check(recipe(**changes))


def test_what_can_be_honoured_is_not_refused() -> None:
    RTX.check(recipe(compute_capabilities=list(RTX_CAPABILITIES)))
    dataclasses.replace(RTX, gpu=lambda: "sm89").check(recipe(refit=True, compute_capabilities=[]))
    with pytest.raises(UnsupportedError, match="sm90: RTX does not target Hopper"):
        dataclasses.replace(RTX, gpu=lambda: "sm90").check(recipe(compute_capabilities=[]))


def test_an_unbuilt_precision_names_the_key() -> None:
    without_int4 = dataclasses.replace(RTX, precisions=("float16",))
    with pytest.raises(UnsupportedError, match=r"speculation\.draft\.precision: .*'int4'"):
        without_int4.check(recipe())


def test_mainline_without_its_library_says_how_to_get_it() -> None:
    with pytest.raises(EnvironmentLacksError, match=r"backend 'tensorrt' needs its library .* pip install 'tensorrt>=11'") as caught:
        compiler("tensorrt").check(recipe(backend="tensorrt", compute_capabilities=["sm90"]))
    assert caught.value.exit_code == 3


def test_mainline_needs_the_gpu_that_it_compiles_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "load", lambda backend: load("tensorrt-rtx"))
    hopper = TensorRTCompiler("tensorrt", gpu=lambda: "sm90")
    hopper.check(recipe(backend="tensorrt", compute_capabilities=["sm90"], timing_cache=True, refit=True))
    with pytest.raises(
        EnvironmentLacksError, match="sm100 asked for and mainline TensorRT compiles for the GPU present alone, which is sm90"
    ):
        hopper.check(recipe(backend="tensorrt", compute_capabilities=["sm100"]))
    with pytest.raises(EnvironmentLacksError, match="'tensorrt' compiles for the GPU present and this machine has none"):
        TensorRTCompiler("tensorrt", gpu=lambda: None).check(recipe(backend="tensorrt", compute_capabilities=["sm90"]))


@pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX")
def test_timings_are_kept_in_the_store_and_read_back(tmp_path: Path, home: Path) -> None:
    """Mainline's path, over the bindings that are here: RTX has the calls, though it times nothing (and ``check`` says so)."""
    spec, job = tiny_spec(num_layers=1), CompileJob.of(recipe(timing_cache=True), "target")
    kept = home / ".timings" / f"tensorrt_rtx-{RTX.version()}-sm89"
    for _ in range(2):
        RTX.compile(graph(spec, RandomWeights(spec), job), job, tmp_path)
        assert kept.stat().st_size > 0
    assert not Store.default().bundles(), "no bundle"


def test_the_gpu_present_is_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def __init__(self, gpus: int) -> None:
            self.gpus = gpus

        def cuInit(self, flags: int) -> int:  # noqa: N802
            return 0 if self.gpus else 100  # CUDA_ERROR_NO_DEVICE

        def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
            return 0

        def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
            value._obj.value = {75: 12, 76: 1}[attribute]
            return 0

    monkeypatch.setattr(tensorrt_library.ctypes, "CDLL", lambda name: Driver(1))
    assert tensorrt_library.present_capability() == "sm121"
    monkeypatch.setattr(tensorrt_library.ctypes, "CDLL", lambda name: Driver(0))
    assert tensorrt_library.present_capability() is None
