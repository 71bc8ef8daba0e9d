"""What tests of every folder use; being here also lets them import the helpers beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_checkpoint import END, save_tiny

CHAT_TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}" + END + "{% endfor %}[assistant]"


@pytest.fixture
def tiny_checkpoint(tmp_path: Path) -> Path:
    """A tiny random Llama checkpoint, a test's own."""
    return save_tiny(tmp_path / "checkpoint")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store that the commands use."""
    folder = tmp_path / "home"
    monkeypatch.setenv("SPECBUILD_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file of a tiny checkpoint that has a chat template, with a draft."""
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = save_tiny(folder / "checkpoint", max_position_embeddings=1024)
    (checkpoint / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    file = folder / "tiny.yaml"
    file.write_text(
        f"name: tiny\ncheckpoint: {checkpoint}\ntarget: {{max_seq_len: 1024, max_batch_size: 4}}\nspeculation: {{draft: {{}}}}\n"
    )
    return file


@pytest.fixture(scope="session")
def tiny_bundle(tiny_recipe: Path) -> Path:
    """The bundle of ``tiny_recipe``, built and measured once; not to be changed."""
    from specbuild import config
    from specbuild.builders.build import build
    from specbuild.builders.store import Store
    from specbuild.probe import probe

    recipe = config.load(str(tiny_recipe), environ={}).recipe
    return build(recipe, store=Store(tiny_recipe.parent / "store"), probe=probe).bundle.path
