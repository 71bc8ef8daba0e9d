"""Prompts from a file: a JSON object a line with ``prompt``, ``turns`` or ``messages``; ``id`` and ``task`` are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbuild.errors import UsageError

Messages = Sequence[Mapping[str, Any]]

FORMS = ("prompt", "turns", "messages")


@dataclass(frozen=True)
class PromptItem:
    """One prompt: plain text, or chat messages."""

    id: str | int
    """The line's own, else how many prompts came before it."""
    content: str | Messages
    origin: str
    """Where it was given, such as ``prompts.jsonl:3``: named when it is refused."""
    task: str | None = None


def read_prompts(file: Path) -> list[PromptItem]:
    """Every prompt of a JSON-lines file; empty lines are passed over, keys that are not ours too.

    Raises:
        UsageError: naming the first line that is no prompt, or the file that has none.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); give a file with a JSON object a line") from error
    items: list[PromptItem] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            items.append(parse_line(line, f"{file}:{number}", default_id=len(items)))
    if not items:
        raise UsageError(f'{file}: no prompts in it; write a JSON object a line, such as {{"prompt": "Hello"}}')
    return items


def parse_line(line: bytes, origin: str, *, default_id: int) -> PromptItem:
    """The prompt in one line.

    Raises:
        UsageError: it is no JSON object, has not exactly one of the three forms, or that has the wrong type.
    """
    try:
        document = json.loads(as_text(line, origin))
        json.dumps(document, ensure_ascii=False).encode()  # JSON may escape half a surrogate pair, which is no text
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{origin}: not JSON ({error}); write one object a line") from error
    if not isinstance(document, dict):
        raise UsageError(f"{origin}: {_kind(document)} instead of a JSON object; write one object a line")
    given = [form for form in FORMS if form in document]
    if len(given) != 1:
        seen = " and ".join(given) or ", ".join(map(repr, document)) or "nothing"
        raise UsageError(f"{origin}: exactly one of prompt, turns and messages is needed (seen: {seen})")
    name = document.get("id", default_id)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise UsageError(f"{origin}: id is {_kind(name)}, but must be a string or a whole number")
    task = document.get("task")
    if task is not None and not isinstance(task, str):
        raise UsageError(f"{origin}: task is {_kind(task)}, but must be a string")
    content = _content(given[0], document[given[0]], origin)
    return PromptItem(name, content, origin, task)


def as_text(data: bytes, origin: str) -> str:
    """``data`` as UTF-8, without the byte order mark that some editors put first.

    Raises:
        UsageError: it is not.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{origin}: not UTF-8 text (byte {error.start}: {error.reason}); save it as UTF-8") from error


def _content(form: str, value: Any, origin: str) -> str | Messages:
    if form == "prompt":
        if not isinstance(value, str):
            raise UsageError(f"{origin}: prompt is {_kind(value)}, but must be a string")
        return value
    if not isinstance(value, list) or not value:
        raise UsageError(f"{origin}: {form} is {_kind(value)}, but must be a list with at least one entry")
    if form == "turns":
        if not isinstance(value[0], str):
            raise UsageError(f"{origin}: the first of turns is {_kind(value[0])}, but must be a string")
        return value[0]
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise UsageError(
                f'{origin}: a message is {_kind(message)}; each must be an object such as {{"role": "user", "content": "Hello"}}'
            )
    return value


def _kind(value: Any) -> str:
    """``value`` as a reader of JSON would call it, short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
