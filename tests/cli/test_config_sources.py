"""Where a recipe's values come from, and who is named when one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specbuild import config, yaml_core
from specbuild.cli.main import run
from specbuild.errors import RecipeError, UsageError

DOCUMENT = {"name": "tiny", "checkpoint": "model", "target": {"precision": "int8", "max_seq_len": 64}}


def resolve(environ: dict[str, str] | None = None, *settings: str, document: dict[str, Any] = DOCUMENT) -> config.ResolvedRecipe:
    assignments = [config.from_option(text) for text in settings]
    return config.from_sources(document, origin="tiny.yaml", environ=environ or {}, assignments=assignments)


def test_the_option_wins_over_the_variable_over_the_file_over_the_default() -> None:
    environ = {"SPECBUILD_TARGET__PRECISION": "int4", "SPECBUILD_TARGET__MAX_SEQ_LEN": "128", "SPECBUILD_HOME": "/elsewhere"}
    rows = {key: (value, origin) for key, value, origin in resolve(environ, "target.precision=float32").rows()}
    assert rows["target.precision"] == ("float32", "--set target.precision")
    assert rows["target.max_seq_len"] == (128, "SPECBUILD_TARGET__MAX_SEQ_LEN")
    assert rows["name"] == ("tiny", "tiny.yaml")
    assert rows["target.max_batch_size"] == (8, "default")


def test_a_mapping_is_merged_and_anything_else_replaces() -> None:
    document = DOCUMENT | {"speculation": {"draft": {"precision": "int8", "checkpoint": "other"}}}
    merged = resolve(None, "speculation.draft.precision=int4", document=document).recipe.speculation.draft
    assert merged is not None
    assert (merged.precision, merged.checkpoint) == ("int4", "other")
    removed = resolve(None, "speculation.draft=null", document=document)
    assert removed.recipe.speculation.draft is None
    assert ("speculation.draft", None, "--set speculation.draft") in list(removed.rows())
    again = resolve(None, "speculation.draft=null", "speculation.draft.precision=int4", document=document)
    assert again.recipe.speculation.draft is not None
    assert again.recipe.speculation.draft.checkpoint is None


def test_sections_with_names_are_merged_shown_and_checked_like_others() -> None:
    document = DOCUMENT | {"speculation": {"drafts": {"middle": {"precision": "int8", "checkpoint": "other"}}}}
    resolved = resolve({"SPECBUILD_SPECULATION__DRAFTS__MIDDLE__PRECISION": "int4"}, "speculation.drafts.big={}", document=document)
    rows = {key: (value, origin) for key, value, origin in resolved.rows()}
    assert rows["speculation.drafts.middle.precision"] == ("int4", "SPECBUILD_SPECULATION__DRAFTS__MIDDLE__PRECISION")
    assert rows["speculation.drafts.middle.checkpoint"] == ("other", "tiny.yaml")
    assert rows["speculation.drafts.big.checkpoint"] == (None, "--set speculation.drafts.big")
    assert list(resolved.recipe.speculation.models) == ["draft.middle", "draft.big"]


@pytest.mark.parametrize(
    ("environ", "settings", "sentence"),
    [
        (
            {},
            ["speculation.drafts.a.presicion=int4"],
            "--set speculation.drafts.a.presicion: speculation.drafts.a: unknown key 'presicion'.",
        ),
        ({}, ["speculation.drafts.a=3"], "--set speculation.drafts.a: speculation.drafts.a"),
        ({}, ["target.presicion=int4"], "--set target.presicion: target: unknown key 'presicion'. Did you mean 'precision'?"),
        ({"SPECBUILD_TRAGET__PRECISION": "int4"}, [], "SPECBUILD_TRAGET__PRECISION: unknown key 'traget'. Did you mean 'target'?"),
        ({"SPECBUILD_TARGET__MAX_SEQ_LEN": "many"}, [], "SPECBUILD_TARGET__MAX_SEQ_LEN: target.max_seq_len: Input should be a valid"),
        ({}, ["target.max_seq_len=2"], "--set target.max_seq_len: target.max_seq_len: Input should be greater than"),
        ({}, ["target=3"], "--set target: target"),
        ({}, ["target.precision=[int4"], "--set target.precision:1: not valid YAML"),
    ],
)
def test_a_refusal_names_the_source(environ: dict[str, str], settings: list[str], sentence: str) -> None:
    with pytest.raises(RecipeError) as refused:
        resolve(environ, *settings)
    assert str(refused.value).startswith(sentence)


def test_an_unknown_key_of_the_file_is_refused_in_its_name() -> None:
    with pytest.raises(RecipeError, match=r"^tiny\.yaml: target: unknown key 'precison'\. Did you mean 'precision'\?"):
        resolve(document=DOCUMENT | {"target": {"precison": "int8"}})


@pytest.mark.parametrize("text", ["target.precision", "=int4", "a..b=1"])
def test_an_option_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not KEY=VALUE"):
        config.from_option(text)


def test_an_option_keeps_what_follows_the_first_equals_sign() -> None:
    assert config.from_option("checkpoint=a=b").value == "a=b"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("true", True),
        ("1e-5", 1e-5),
        ("1e6", 1e6),
        ("12", 12),
        ("1.5", 1.5),
        ("sm89", "sm89"),
        ("~", None),
        ("1:30", "1:30"),
        ("0x40", 64),
        ("2020-99-99", "2020-99-99"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    parsed = yaml_core.parse(text, origin="x")
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_syntax_error_gives_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("name: tiny\ncheckpoint: [model\ntarget: {}\n")
    with pytest.raises(RecipeError) as refused:
        config.load(str(file), environ={})
    assert str(refused.value).startswith(f"{file}:3: not valid YAML")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target: &a {config: *a}", "Circular reference"),
        ("checkpoint: &a [*a]", "Circular reference"),
        ("? [a, b]\n: 1", ":1: not valid YAML: a key is a list or a mapping"),
        ("target: {max_seq_len: .nan}", "not JSON compliant"),
        ("target: {max_seq_len: " + "9" * 5000 + "}", "4300 digits"),
        ("checkpoint: " + "[" * 3000 + "]" * 3000, "recursion"),
        ("target: {config: !!set {a}}", "type set"),
        ("name: !!bool abc", "'abc'"),
        ("name: t\x01", "special characters are not allowed"),
    ],
)
def test_what_json_could_not_say_is_one_sentence(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("strange.yaml").write_text(text)
    assert run(["config", "show", "-c", "strange.yaml"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: strange.yaml")
    assert words in err


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("name: tiny\ncheckpoint: a\ncheckpoint: b\n")
    with pytest.raises(RecipeError, match=r"twice\.yaml:3: not valid YAML: key 'checkpoint' is given twice"):
        config.load(str(file), environ={})


def test_a_recipe_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("- name\n")
    with pytest.raises(RecipeError, match="a recipe is a mapping of keys, this is list"):
        config.load(str(file), environ={})


def test_a_recipe_that_is_not_there_brings_the_closest_shipped_one() -> None:
    with pytest.raises(UsageError, match=r"^smollm-135m: neither a recipe file nor a shipped recipe\. Did you mean 'smollm2-135m'\?"):
        config.load("smollm-135m", environ={})


@pytest.mark.parametrize("name", sorted(config.shipped()))
def test_every_shipped_recipe_resolves_under_its_own_name(name: str) -> None:
    assert config.load(name, environ={}).recipe.name == name
