"""What killed servers left is removed, and what living ones have is not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from specbuild.triton import scratch as module
from specbuild.triton.scratch import Scratch, sweep


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary folders and shared memory of the test's own; returns the latter."""
    memory = tmp_path / "shm"
    memory.mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(module, "MEMORY", memory)
    return memory


def abandoned() -> Scratch:
    scratch = Scratch()
    scratch.open_log().close()
    (scratch.folder / "backends").mkdir()
    (module.MEMORY / f"{scratch.regions}1").touch()
    return scratch


def left(places: Path) -> list[str]:
    return sorted(entry.name for entry in (*places.iterdir(), *Path(tempfile.gettempdir()).iterdir()))


def test_what_nobody_holds_goes_with_its_memory(places: Path) -> None:
    (places / "somebody-elses").touch()
    abandoned()
    sweep(young=0)
    assert left(places) == ["somebody-elses"]


def test_what_a_process_holds_stays(places: Path) -> None:
    held = Scratch()
    with held.open_log() as log:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=log)
    abandoned()
    sweep(young=0)
    assert left(places) == [held.folder.name]
    process.communicate()
    sweep(young=0)
    assert left(places) == []


def test_what_is_young_may_be_about_to_be_held(places: Path) -> None:
    young, old = abandoned(), abandoned()
    os.utime(old.folder, (0, time.time() - 3600))
    sweep()
    assert left(places) == sorted([young.folder.name, f"{young.regions}1"])


def test_what_has_no_log_is_left_alone(places: Path) -> None:
    Path(tempfile.mkdtemp(prefix=module.PREFIX))
    sweep(young=0)
    assert len(left(places)) == 1


def test_the_leash_ends_its_group_and_frees_the_memory(places: Path) -> None:
    scratch = abandoned()
    leash = subprocess.Popen(scratch.leash, stdin=subprocess.PIPE, process_group=0)
    led = subprocess.Popen(["sleep", "1000"], process_group=leash.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        led.wait(0.3)
    leash.communicate()
    assert led.wait(10) == -9
    assert left(places) == [scratch.folder.name], "the log is kept until the next server starts"
