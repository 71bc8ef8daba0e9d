"""Real builds that are really killed, and a real disk limit that is really hit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tiny_checkpoint import save_tiny

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.recipe import Recipe

KILLS = 20

# Says when all is imported, builds when it is told to. (No fork: onnxruntime has threads, which a forked child would wait for in vain.)
BUILDER = """
import json, sys
from pathlib import Path
import specbuild.builders.compilers.onnxruntime
from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.recipe import Recipe
home, document = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
build(Recipe.model_validate(json.loads(document)), store=Store(Path(home)), force=True)
"""

LIMITED = """
import resource, sys
from specbuild.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
main(sys.argv[1:])
"""


class Builder:
    """Builds one recipe again and again, each time in a process of its own."""

    def __init__(self, home: Path, document: Mapping[str, object]) -> None:
        self.command = [sys.executable, "-c", BUILDER, str(home), json.dumps(document)]
        self.seconds = 0.0
        """Of the last build, imports left out."""

    def build(self, kill_after: float = 0) -> int:
        """One build, killed after some seconds unless they are 0; how it ended: 0, or minus the signal."""
        with subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("\n")
            process.stdin.flush()
            started = time.perf_counter()
            if kill_after > 0:
                time.sleep(kill_after)
                process.kill()
            code = process.wait()
            self.seconds = time.perf_counter() - started
            return code


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    checkpoint = save_tiny(tmp_path / "checkpoint", hidden_size=256, intermediate_size=512, num_hidden_layers=4)
    document = {"name": "tiny", "checkpoint": str(checkpoint), "target": {"max_seq_len": 64}, "speculation": {"draft": {}}}
    return Builder(tmp_path / "store", document)


def staged(store: Store) -> list[str]:
    return [path.name for path in store.home.iterdir() if path.name.startswith((".staging", ".trash"))]


@pytest.mark.slow
def test_a_build_killed_at_any_moment_leaves_the_store_clean(tmp_path: Path, builder: Builder) -> None:
    store = Store(tmp_path / "store")
    builder.build()  # warms the disk
    assert builder.build() == 0
    whole = builder.seconds
    killed = interrupted = 0
    for turn in range(KILLS):
        # One moment in each twentieth of a build, so that every part of it is hit.
        killed += builder.build(whole * (turn + random.random()) / KILLS) == -signal.SIGKILL
        for entry in store.bundles():
            assert entry.problem is None
            Bundle.open(entry.path).verify_files()
        interrupted += bool(staged(store))
    assert killed > KILLS // 2
    assert interrupted > 0, "no kill hit a build at work: the test shows nothing"
    assert builder.build() == 0
    assert len(store.bundles()) == 1
    assert staged(store) == []


def test_a_disk_that_fills_up_while_building(tmp_path: Path, tiny_checkpoint: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"name: tiny\ncheckpoint: {tiny_checkpoint}\ntarget: {{max_seq_len: 64, precision: float32}}\n")
    home = tmp_path / "home"
    command = [sys.executable, "-c", LIMITED, "engine", "build", "-c", str(recipe), "--no-probe"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"SPECBUILD_HOME": str(home)})
    *_, last = done.stderr.splitlines()
    assert done.returncode == 1
    assert last.startswith(f"error: {home}: the disk is full (")
    assert ": the build needs about " in last
    assert "set SPECBUILD_HOME to a larger disk" in last
    assert done.stdout == ""
    assert staged(Store(home)) == []
    assert Store(home).bundles() == []


def test_two_builders_of_one_bundle_make_it_once(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """A second builder waits for the first and takes its bundle."""
    store = Store(tmp_path / "other")
    recipe = Recipe.model_validate({"name": "tiny", "checkpoint": str(tiny_checkpoint), "target": {"max_seq_len": 64}})
    first = build(recipe, store=store)
    hidden = first.bundle.path.rename(tmp_path / "made by another")

    def meanwhile(message: str) -> None:
        if message.startswith("waiting"):
            hidden.rename(first.bundle.path)

    assert not build(recipe, store=store, progress=meanwhile).built
