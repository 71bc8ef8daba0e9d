"""A build: once for the same inputs, whole or not at all, and described by its manifest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_checkpoint import save_tiny

from specbuild.builders.build import build
from specbuild.builders.engines import Prober
from specbuild.builders.store import Store
from specbuild.bundle import Bundle, EngineEntry, Probe
from specbuild.errors import BuildError, EnvironmentLacksError, VerificationError
from specbuild.recipe import Recipe
from specbuild.runtime.engines.version import check_version


def recipe(checkpoint: Path, **changes: object) -> Recipe:
    document = {"name": "tiny", "checkpoint": str(checkpoint), "target": {"max_seq_len": 64}, "speculation": {"draft": {}}}
    return Recipe.model_validate(document | changes)


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def left_over(store: Store) -> list[str]:
    return [path.name for path in store.home.iterdir() if path.name.startswith((".staging", ".trash"))]


class FakeProbe:
    """Notes what it was asked to measure, and whether the files were there."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []

    def __call__(self, folder: Path, entry: EngineEntry, reference: EngineEntry | None) -> Probe:
        assert (folder / entry.file).is_file()
        assert reference is None or (folder / reference.file).is_file()
        self.asked.append((entry.role, entry.precision, reference.precision if reference else None))
        return Probe(step_invariant=True, batch_invariant=False, view_invariant=True, step_costs=(), parity=None)


def test_a_bundle_is_complete_and_describes_itself(tmp_path: Path, tiny_checkpoint: Path) -> None:
    bundle = build(recipe(tiny_checkpoint), store=Store(tmp_path / "store")).bundle
    manifest = bundle.manifest
    files = {f"engines/{role}/model.onnx{suffix}" for role in ("target", "draft") for suffix in ("", ".data")}
    files |= {"tokenizer/tokenizer.json", "tokenizer/generation_config.json"}
    assert names(bundle.path) == files | {"manifest.json"}
    assert set(manifest.files) == files
    assert bundle.path.name == f"tiny-{manifest.digest[:12]}"
    assert (tiny_checkpoint / "tokenizer.json").read_bytes() == (bundle.path / "tokenizer/tokenizer.json").read_bytes()
    assert manifest.vocabulary.model_dump() == {"size": 257, "bos_token_id": 256, "eos_token_ids": (256,), "pad_token_id": None}
    engines = [(engine.role, engine.precision, engine.probe) for engine in manifest.engines]
    assert engines == [("target", "int8", None), ("draft", "int4", None)]
    assert manifest.checkpoints["target"] == manifest.checkpoints["draft"]
    assert {"specbuild", "onnxruntime", "onnx-ir", "python"} <= manifest.tools.keys()


def test_a_draft_of_another_vocabulary_brings_its_tokenizer_along(tmp_path: Path, tiny_checkpoint: Path) -> None:
    other = save_tiny(tmp_path / "other", tokens=("<|tool|>",), eos_token_id=257)
    section = {"checkpoint": str(other), "vocabulary": "own"}
    asked = recipe(tiny_checkpoint, speculation={"draft": section, "drafts": {"twin": section}})
    bundle = build(asked, store=Store(tmp_path / "store")).bundle
    known = {"size": 258, "bos_token_id": 256, "eos_token_ids": (257,), "pad_token_id": None}
    assert bundle.engine("target").vocabulary is None
    assert bundle.engine("draft").file == bundle.engine("draft.twin").file
    for role in ("draft", "draft.twin"):
        vocabulary = bundle.engine(role).vocabulary
        assert vocabulary is not None
        assert vocabulary.model_dump() == known
        assert f"tokenizer/{role}/tokenizer.json" in bundle.manifest.files
        assert (bundle.path / bundle.engine(role).tokenizer / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


def test_the_second_build_builds_nothing_and_force_does(tmp_path: Path, tiny_checkpoint: Path) -> None:
    store = Store(tmp_path / "store")
    said: list[str] = []
    first = build(recipe(tiny_checkpoint), store=store)
    inode = (first.bundle.path / "manifest.json").stat().st_ino
    second = build(recipe(tiny_checkpoint), store=store, progress=said.append)
    assert (first.built, second.built) == (True, False)
    assert said == ["checking the checkpoints"]
    assert (second.bundle.path / "manifest.json").stat().st_ino == inode
    third = build(recipe(tiny_checkpoint), store=store, force=True)
    assert third.built
    assert third.bundle.path == first.bundle.path
    assert (third.bundle.path / "manifest.json").stat().st_ino != inode
    assert third.bundle.manifest.files == first.bundle.manifest.files, "the same inputs give the same bytes"
    assert left_over(store) == []


def test_a_default_of_generation_is_taken_from_the_recipe_asked_for(tmp_path: Path, tiny_checkpoint: Path) -> None:
    store = Store(tmp_path / "store")
    build(recipe(tiny_checkpoint), store=store)
    asked = recipe(tiny_checkpoint, speculation={"draft": {}, "method": "draft_model", "draft_len": 2})
    again = build(asked, store=store)
    assert not again.built
    assert again.bundle.manifest.recipe == asked
    assert Bundle.open(again.bundle.path).manifest.recipe.speculation.method == "ngram"


def test_a_bundle_is_self_contained(tmp_path: Path, tiny_checkpoint: Path) -> None:
    bundle = build(recipe(tiny_checkpoint), store=Store(tmp_path / "store")).bundle
    copy = Path(shutil.copytree(bundle.path, tmp_path / "copy"))
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(tiny_checkpoint)
    Bundle.open(copy).verify_files()


def test_each_engine_is_measured_against_float32_and_that_is_removed(tmp_path: Path, tiny_checkpoint: Path) -> None:
    probe = FakeProbe()
    draft = {"checkpoint": str(save_tiny(tmp_path / "draft", seed=1)), "precision": "float32"}
    bundle = build(recipe(tiny_checkpoint, speculation={"draft": draft}), store=Store(tmp_path / "store"), probe=probe).bundle
    assert probe.asked == [("target", "int8", "float32"), ("draft", "float32", None)]
    assert [engine.probe and engine.probe.batch_invariant for engine in bundle.manifest.engines] == [False, False]
    assert not any("reference" in name for name in names(bundle.path))


def test_a_float32_engine_of_the_pair_is_the_one_to_compare_with(tmp_path: Path, tiny_checkpoint: Path) -> None:
    probe, said = FakeProbe(), list[str]()
    target = {"precision": "float32", "max_seq_len": 64}
    build(recipe(tiny_checkpoint, target=target), store=Store(tmp_path / "store"), probe=probe, progress=said.append)
    assert probe.asked == [("target", "float32", None), ("draft", "int4", "float32")]
    assert sum(message.startswith("compiling") for message in said) == 2


def test_a_draft_that_is_the_target_shares_its_engine(tmp_path: Path, tiny_checkpoint: Path) -> None:
    probe = FakeProbe()
    target = {"precision": "int4", "max_seq_len": 64}
    bundle = build(recipe(tiny_checkpoint, target=target), store=Store(tmp_path / "store"), probe=probe).bundle
    target_entry, draft_entry = bundle.manifest.engines
    assert draft_entry == target_entry.model_copy(update={"role": "draft"})
    assert target_entry.probe is not None
    assert probe.asked == [("target", "int4", "float32")]
    assert sorted(path.name for path in (bundle.path / "engines").iterdir()) == ["target"]


def test_each_named_draft_has_an_engine(tmp_path: Path, tiny_checkpoint: Path) -> None:
    probe = FakeProbe()
    drafts = {"middle": {"precision": "int8"}, "other": {"checkpoint": str(save_tiny(tmp_path / "other", seed=1)), "precision": "float32"}}
    target = {"precision": "float32", "max_seq_len": 64}
    asked = recipe(tiny_checkpoint, target=target, speculation={"draft": {}, "drafts": drafts})
    bundle = build(asked, store=Store(tmp_path / "store"), probe=probe).bundle
    roles = ["target", "draft", "draft.middle", "draft.other"]
    assert [engine.role for engine in bundle.manifest.engines] == roles
    assert [engine.precision for engine in bundle.manifest.engines] == ["float32", "int4", "int8", "float32"]
    assert sorted(path.name for path in (bundle.path / "engines").iterdir()) == sorted(roles)
    assert list(bundle.manifest.checkpoints) == roles
    bundle.verify_files()


def test_an_engine_that_cannot_run_here_is_built_and_not_measured(tmp_path: Path, tiny_checkpoint: Path) -> None:
    def absent(folder: Path, entry: EngineEntry, reference: EngineEntry | None) -> Probe:
        raise EnvironmentLacksError("no GPU")

    said: list[str] = []
    result = build(recipe(tiny_checkpoint), store=Store(tmp_path / "store"), probe=absent, progress=said.append)
    assert [engine.probe for engine in result.bundle.manifest.engines] == [None, None]
    assert "not measured: no GPU" in said


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, tiny_checkpoint: Path) -> None:
    def interrupted(folder: Path, entry: EngineEntry, reference: EngineEntry | None) -> Probe:
        raise KeyboardInterrupt

    store = Store(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        build(recipe(tiny_checkpoint), store=store, probe=interrupted)
    assert store.bundles() == []
    assert left_over(store) == []


def test_an_edited_bundle_is_refused_and_force_mends_it(tmp_path: Path, tiny_checkpoint: Path) -> None:
    store = Store(tmp_path / "store")
    manifest = build(recipe(tiny_checkpoint), store=store).bundle.path / "manifest.json"
    edited = json.loads(manifest.read_text())
    edited["engines"][0]["max_seq_len"] = 100_000
    manifest.write_text(json.dumps(edited))
    with pytest.raises(VerificationError, match=r"edited after the build .* --force"):
        build(recipe(tiny_checkpoint), store=store)
    assert build(recipe(tiny_checkpoint), store=store, force=True).built
    Bundle.open(manifest.parent).verify_files()


def test_an_engine_built_for_another_version_is_refused(tmp_path: Path, tiny_checkpoint: Path) -> None:
    bundle = build(recipe(tiny_checkpoint), store=Store(tmp_path / "store")).bundle
    entry = bundle.engine("target").model_copy(update={"version": "1.32.0"})
    check_version(entry, "1.32.9")
    with pytest.raises(EnvironmentLacksError, match=r"target engine was built for onnxruntime 1\.32\.0, installed is 1\.33\.0; "):
        check_version(entry, "1.33.0")
    plan = entry.model_copy(update={"backend": "tensorrt-rtx", "flavour": "tensorrt_rtx", "version": "1.7.1.116"})
    check_version(plan, "1.7.1.116")
    with pytest.raises(EnvironmentLacksError, match=r"tensorrt_rtx 1\.7\.1\.116, installed is 1\.7\.1\.120"):
        check_version(plan, "1.7.1.120")


@pytest.mark.parametrize("probe", [None, FakeProbe()])
def test_too_little_room_is_found_before_compiling(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, probe: Prober | None
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=100_000))
    monkeypatch.setattr("specbuild.builders.build.compile_engines", lambda *rest: pytest.fail("compiled"))
    store = Store(tmp_path / "store")
    with pytest.raises(BuildError) as refused:
        build(recipe(tiny_checkpoint), store=store, probe=probe)
    # Embedding and rotation tables (capacity 128) in float32; then the matrices and the head, with a scale a block of 128 and of 32.
    plain, weights = 264 * 64 * 4 + 128 * 16 * 4, 2 * 30_720 + 264 * 64
    engines = 2 * plain + weights + weights // 2 + weights // 128 * 4 + weights // 32 * 4
    needed = engines + (weights * 4 + 128 * 16 * 4 if probe else 0)
    assert "the disk is full (checked before compiling)" in str(refused.value)
    assert "100,000 are free; free some space (`specbuild engine prune`) or set SPECBUILD_HOME" in str(refused.value)
    assert f"about {needed:,} bytes" in str(refused.value)
    assert left_over(store) == []
