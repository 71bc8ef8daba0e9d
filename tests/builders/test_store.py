"""A store shows a bundle whole or not at all, whoever is killed and whenever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbuild.builders.store import Store
from specbuild.bundle import MANIFEST, Bundle, Manifest, Vocabulary
from specbuild.errors import BuildError, UsageError
from specbuild.recipe import Recipe

FOLDER = "tiny-0123456789ab"

HOLD = """
import sys, time
from pathlib import Path
from specbuild.builders.store import Store
with Store(Path(sys.argv[1])).staging(sys.argv[2]) as staging:
    (staging / "half").write_text("made")
    print("holding", flush=True)
    time.sleep(60)
"""


def fill(staging: Path) -> None:
    recipe = Recipe(name="tiny", checkpoint="model")
    vocabulary = Vocabulary(size=3, bos_token_id=None, eos_token_ids=(2,), pad_token_id=None)
    manifest = Manifest(digest="0" * 64, recipe=recipe, checkpoints={}, tools={}, vocabulary=vocabulary, engines=(), files={})
    (staging / MANIFEST).write_text(manifest.sealed().model_dump_json())


def publish(store: Store, folder: str = FOLDER, *, age: float = 0) -> Path:
    with store.staging(folder) as staging:
        fill(staging)
        path = store.publish(folder)
    os.utime(path, (time.time() - age,) * 2)
    return path


def visible(store: Store) -> list[str]:
    return [entry.path.name for entry in store.bundles()]


def hidden(store: Store) -> list[str]:
    return sorted(path.name for path in store.home.iterdir() if path.name.startswith((".staging-", ".trash-")))


def holder(store: Store, folder: str = FOLDER) -> subprocess.Popen[str]:
    """A process that is building ``folder``, its lock held."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(store.home), folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_published_bundle_opens_and_nothing_else_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "not" / "there" / "yet")
    path = publish(store)
    assert Bundle.open(path).manifest.recipe.name == "tiny"
    assert visible(store) == [FOLDER]
    assert hidden(store) == []


def test_an_error_while_building_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fails() -> None:
        with store.staging(FOLDER) as staging:
            fill(staging)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert visible(store) == hidden(store) == []


def test_publishing_again_replaces_the_bundle(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (publish(store) / "old").touch()
    path = publish(store)
    assert [entry.name for entry in path.iterdir()] == [MANIFEST]
    assert hidden(store) == []


def test_what_a_killed_build_left_is_swept_by_the_next_build_of_any_bundle(tmp_path: Path) -> None:
    store = Store(tmp_path)
    end(holder(store))
    assert hidden(store) == [f".staging-{FOLDER}"]
    assert visible(store) == []
    publish(store, "other-0123456789ab")
    assert hidden(store) == []


def test_a_bundle_being_built_is_neither_swept_nor_built_twice(tmp_path: Path) -> None:
    store = Store(tmp_path)
    publish(store)
    process = holder(store)
    try:
        assert store.prune(keep=0) == []
        publish(store, "other-0123456789ab")
        assert hidden(store) == [f".staging-{FOLDER}"]
        assert FOLDER in visible(store)
        with pytest.raises(BuildError, match="another process is building it"), store.staging(FOLDER, wait=0):
            pass
    finally:
        end(process)
    assert [entry.path.name for entry in store.prune(keep=0)] == ["other-0123456789ab", FOLDER]
    assert hidden(store) == []


def test_prune_keeps_the_newest_of_each_name_and_the_young(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for folder, age in {"a-000000000001": 300, "a-000000000002": 200, "a-b-00000000003": 100, "a-b-00000000004": 50}.items():
        publish(store, folder, age=age)

    def names(**rule: float) -> list[str]:
        return [entry.path.name for entry in store.prune(dry_run=True, **rule)]  # type: ignore[arg-type]

    assert names(keep=1) == ["a-b-00000000003", "a-000000000001"]
    assert names(older_than=150) == ["a-000000000002", "a-000000000001"]
    assert names() == []
    assert len(visible(store)) == 4
    store.prune(keep=1)
    assert visible(store) == ["a-b-00000000004", "a-000000000002"]


def test_a_bundle_that_another_prune_has_removed_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    publish(store)
    listed = store.bundles()
    assert [entry.path.name for entry in Store(tmp_path).prune(keep=0)] == [FOLDER]
    monkeypatch.setattr(store, "bundles", lambda: listed)
    assert store.prune(keep=0) == []


def test_a_bundle_that_cannot_be_opened_is_listed_with_the_reason(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (publish(store) / MANIFEST).write_text("{")
    (entry,) = store.bundles()
    assert entry.problem is not None
    assert "not readable as JSON" in entry.problem


def test_a_bundle_is_found_by_folder_name_and_recipe_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    older, newer = publish(store, "tiny-000000000001", age=10), publish(store, "tiny-000000000002")
    assert store.find("tiny") == newer
    assert store.find("tiny-000000000001") == older
    assert store.find(str(older)) == older
    with pytest.raises(UsageError, match=r"tinny: no bundle in .*\. Did you mean 'tiny'\?"):
        store.find("tinny")


def test_an_empty_store_says_how_to_fill_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "nothing")
    assert store.bundles() == []
    with pytest.raises(UsageError, match="The store is empty"):
        store.find("tiny")


def test_a_store_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file")
    with pytest.raises(BuildError, match=r"file: the store cannot be written .*; set SPECBUILD_HOME"), store.staging(FOLDER):
        pass


def test_the_store_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECBUILD_HOME", str(tmp_path))
    assert Store.default().home == tmp_path
    monkeypatch.delenv("SPECBUILD_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Store.default().home == tmp_path / "cache" / "specbuild"
