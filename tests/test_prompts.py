"""A file of prompts: what is read, and the sentence for each line that is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specbuild.errors import UsageError
from specbuild.prompts import PromptItem, read_prompts


def test_every_form_is_read_and_id_and_task_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "one"}\n'
        "\n"
        '{"id": 81, "task": "qa", "turns": ["two", "later"], "category": "passed over"}\r\n'
        '{"id": "c", "messages": [{"role": "user", "content": "\u2028drei"}]}',
        encoding="utf-8",
    )
    assert read_prompts(file) == [
        PromptItem(0, "one", f"{file}:1"),
        PromptItem(81, "two", f"{file}:3", "qa"),
        PromptItem("c", [{"role": "user", "content": "\u2028drei"}], f"{file}:4"),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{", "not JSON (Expecting property name"),
        (b'"hello"', '"hello" instead of a JSON object'),
        (b"{}", "exactly one of prompt, turns and messages is needed (seen: nothing)"),
        (b'{"text": "a"}', "exactly one of prompt, turns and messages is needed (seen: 'text')"),
        (b'{"prompt": "a", "turns": ["b"]}', "(seen: prompt and turns)"),
        (b'{"prompt": 7}', "prompt is 7, but must be a string"),
        (b'{"prompt": null}', "prompt is null, but must be a string"),
        (b'{"turns": []}', "turns is [], but must be a list with at least one entry"),
        (b'{"turns": "abc"}', 'turns is "abc", but must be a list'),
        (b'{"turns": [1]}', "the first of turns is 1, but must be a string"),
        (b'{"messages": {"role": "user"}}', "but must be a list"),
        (b'{"messages": [{"content": "a"}]}', 'a message is {"content": "a"}; each must be an object such as'),
        (b'{"messages": ["a"]}', 'a message is "a"'),
        (b'{"prompt": "a", "id": [1]}', "id is [1], but must be a string or a whole number"),
        (b'{"prompt": "a", "id": true}', "id is true"),
        (b'{"prompt": "a", "task": 3}', "task is 3, but must be a string"),
        (b'{"prompt": "\xff"}', "not UTF-8 text (byte 12: invalid start byte)"),
        (b'{"prompt": "\\ud800"}', "surrogates not allowed"),
        (b'{"prompt": "a", "task": "\\ud800"}', "surrogates not allowed"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_place(tmp_path: Path, line: bytes, sentence: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "good"}\n' + line + b"\n")
    with pytest.raises(UsageError, match="^" + re.escape(f"{file}:2: ")) as refused:
        read_prompts(file)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n \n")
    with pytest.raises(UsageError, match="no prompts in it; write a JSON object a line"):
        read_prompts(file)
    with pytest.raises(UsageError, match="cannot be read \\(No such file or directory\\)"):
        read_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path)
