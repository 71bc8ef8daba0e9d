"""The table of tensors: the names that clients know, and the one file that is made from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbuild.cli.main import run
from specbuild.errors import UsageError
from specbuild.triton.fields import INPUTS, OUTPUTS, rows
from specbuild.triton.metrics import METRICS, PREFIX
from specbuild.triton.render import ModelSettings, config, from_text, render, to_text

ROOT = Path(__file__).parent.parent.parent

LLMAPI = {
    "text_input": ("TYPE_STRING", -1),
    "streaming": ("TYPE_BOOL", 1),
    "stop": ("TYPE_BOOL", 1),
    "sampling_param_best_of": ("TYPE_INT32", 1),
    "sampling_param_temperature": ("TYPE_FP32", 1),
    "sampling_param_top_k": ("TYPE_INT32", 1),
    "sampling_param_top_p": ("TYPE_FP32", 1),
    "sampling_param_frequency_penalty": ("TYPE_FP32", 1),
    "sampling_param_presence_penalty": ("TYPE_FP32", 1),
    "sampling_param_max_tokens": ("TYPE_INT32", 1),
    "sampling_param_stop": ("TYPE_STRING", -1),
    "sampling_param_seed": ("TYPE_UINT64", 1),
    "sampling_param_exclude_input_from_output": ("TYPE_BOOL", 1),
    "sampling_param_return_perf_metrics": ("TYPE_BOOL", 1),
    "return_finish_reason": ("TYPE_BOOL", 1),
    "return_stop_reason": ("TYPE_BOOL", 1),
    "return_cumulative_logprob": ("TYPE_BOOL", 1),
}
"""Inputs of TensorRT-LLM's ``llmapi`` model, adapters and images aside."""
LLMAPI_OUTPUTS = {
    "text_output": ("TYPE_STRING", -1),
    "finish_reason": ("TYPE_STRING", -1),
    "stop_reason": ("TYPE_STRING", -1),
    "cumulative_logprob": ("TYPE_FP32", -1),
    "arrival_time_ns": ("TYPE_INT64", 1),
    "first_token_time_ns": ("TYPE_INT64", 1),
    "last_token_time_ns": ("TYPE_INT64", 1),
    "acceptance_rate": ("TYPE_FP32", 1),
    "total_accepted_draft_tokens": ("TYPE_INT32", 1),
    "total_draft_tokens": ("TYPE_INT32", 1),
}
"""Its outputs, blocks of a paged cache aside."""


def test_names_types_and_shapes_are_llmapis() -> None:
    assert {field.name: (field.kind.type, field.kind.dims) for field in INPUTS if field.name in LLMAPI} == LLMAPI
    assert {field.name: (field.kind.type, field.kind.dims) for field in OUTPUTS if field.name in LLMAPI_OUTPUTS} == LLMAPI_OUTPUTS


def test_no_name_is_there_twice() -> None:
    names = [field.name for field in INPUTS]
    assert len(set(names)) == len(names)
    assert {output.asked_by for output in OUTPUTS if output.asked_by} <= set(names)


def test_the_shipped_configuration_is_the_tables() -> None:
    """The golden file; `specbuild triton render` makes it."""
    assert (ROOT / "triton_repo" / "specbuild" / "config.pbtxt").read_text() == to_text(config(ModelSettings()))


def test_a_configuration_is_read_back(tmp_path: Path) -> None:
    settings = ModelSettings("mine", tmp_path, device="gpu", count=2, gpus=(0, 1), parameters={"threads": "2"})
    message = config(settings)
    assert from_text(to_text(message)) == message
    assert message.instance_group[0].gpus == [0, 1]
    assert {name: value.string_value for name, value in message.parameters.items()} == {"bundle": str(tmp_path), "threads": "2"}
    assert message.model_transaction_policy.decoupled


def test_what_is_no_configuration_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"config\.pbtxt: 2:1 : .*no field named"):
        from_text("max_batch_size: 0\nbogus: 1\n")


def test_a_repository_of_two_models(tmp_path: Path) -> None:
    made = render([ModelSettings("one"), ModelSettings("two")], tmp_path / "out")
    assert [folder.name for folder in made] == ["one", "two"]
    files = sorted(str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert files == ["one/1/model.py", "one/config.pbtxt", "two/1/model.py", "two/config.pbtxt"]
    assert from_text((made[1] / "config.pbtxt").read_text()).name == "two"


def test_a_folder_in_use_and_impossible_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not an empty folder"):
        render([ModelSettings()], tmp_path)
    with pytest.raises(UsageError, match="each needs a name of its own"):
        render([ModelSettings(), ModelSettings()], tmp_path / "out")
    for wrong in ({"name": "a/b"}, {"name": ".."}, {"count": 0}, {"gpus": (0,)}):
        with pytest.raises(UsageError):
            ModelSettings(**wrong)  # type: ignore[arg-type]


def test_the_documentation_has_every_tensor_and_metric() -> None:
    text = (ROOT / "docs" / "serving.md").read_text()
    for name, kind, meaning in rows():
        assert f"| `{name}` | {kind} | {meaning} |" in text, name
    for metric in METRICS:
        assert f"| `{PREFIX}{metric.name}` | {metric.kind.lower()} | {metric.doc} |" in text, metric.name


def test_fields_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["triton", "fields", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == [field.name for field in (*INPUTS, *OUTPUTS)]
    assert run(["triton", "fields"]) == 0
    assert "sampling_param_logit_bias" in capsys.readouterr().out
