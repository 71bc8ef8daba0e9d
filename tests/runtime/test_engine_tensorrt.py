"""The TensorRT engine without a GPU: what it refuses, and that every name of the vendor's API exists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensorrt_names import missing_names, used_names
from tensorrt_play import PREFILL, VERIFY, entry

from specbuild.errors import BundleError, EnvironmentLacksError, RequestError, UnsupportedError
from specbuild.runtime.engines import load, tensorrt, tensorrt_plan
from specbuild.runtime.engines.tensorrt import TensorRTEngine, pick
from specbuild.runtime.engines.tensorrt_plan import check_machine, require_gpu, require_library

# What it refuses.


def test_without_a_gpu_one_sentence_and_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentLacksError, match=r"need an NVIDIA GPU and torch .* sees none") as caught:
        load(tmp_path, entry(), threads=2)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_hidden_states_are_not_taken_yet(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"does not take yet; remove speculation\.heads"):
        load(tmp_path, entry().model_copy(update={"taps": (1, 2)}))


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EnvironmentLacksError, match="torch is not installed: pip install"):
        require_gpu("cuda:0")


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 9) if index == 1 else (12, 0))
    assert (require_gpu("cuda:0"), require_gpu("cuda:1")) == ("sm120", "sm89")
    with pytest.raises(EnvironmentLacksError, match="device cuda:2 was asked for and there are 2 GPUs"):
        require_gpu("cuda:2")


def test_a_library_that_is_not_installed() -> None:
    assert require_library("tensorrt_rtx").__version__
    with pytest.raises(EnvironmentLacksError, match=r"engines need tensorrt .*pip install 'tensorrt>=11'"):
        require_library("tensorrt")


def test_another_version_or_gpu_names_both_sides_and_the_command() -> None:
    check_machine(entry(), "1.7.1.116", "sm120")
    with pytest.raises(
        EnvironmentLacksError, match=r"compiled with tensorrt_rtx 1\.7\.1\.116, installed is 1\.8\.0.*engine build --force -c"
    ):
        check_machine(entry(), "1.8.0", "sm89")
    with pytest.raises(
        EnvironmentLacksError, match=r"compiled for sm89, sm120, .* GPU is sm86; .*--set tensorrt\.compute_capabilities=\[sm86\]"
    ):
        check_machine(entry(), "1.7.1.116", "sm86")


@pytest.mark.parametrize("content", [None, b"", b"no plan at all"])
def test_a_plan_that_is_missing_or_corrupt(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_plan, "require_gpu", lambda device: "sm89")
    path = tmp_path / "target.engine"
    if content is not None:
        path.write_bytes(content)
    version = require_library("tensorrt_rtx").__version__
    with pytest.raises(BundleError, match=r"target\.engine: .*build it anew with `specbuild engine build --force"):
        TensorRTEngine(path, entry(version=version))


def test_importing_it_loads_neither_torch_nor_tensorrt() -> None:
    heavy = {"torch", "tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"}
    code = f"import sys, specbuild.runtime.engines.tensorrt; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_every_name_of_the_api_exists() -> None:
    names = used_names(tensorrt, {"config": "IRuntimeConfig"}) | used_names(tensorrt_plan, {})
    wanted = {"IExecutionContext.execute_async_v3", "ICudaEngine.get_aliased_input_tensor", "Runtime.deserialize_cuda_engine"}
    assert wanted <= names
    assert missing_names(require_library("tensorrt_rtx"), names) == set()


# Pure decisions.


def test_the_smallest_profile_that_fits_is_picked() -> None:
    limits = (VERIFY, PREFILL)
    assert [pick(limits, 4, 8, 8), pick(limits, 1, 9, 1), pick(limits, 1, 1, 1)] == [0, 1, 0]
    for shape in ((5, 1, 1), (1, 33, 1), (1, 8, 9)):
        with pytest.raises(RequestError, match="the plan takes 4 × 32 with 8"):
            pick(limits, *shape)
