"""The script behind the promises of docs/serving.md, run short over a tiny bundle: it keeps them, and it would notice if not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import watch

    return watch


def test_counters_are_held_against_the_answers(watch: Any) -> None:
    balance = watch.Balance()
    for _ in range(2):
        balance.add(dict.fromkeys(watch.SUMS.values(), 5))
    agreeing = dict.fromkeys(watch.SUMS, 10) | dict.fromkeys((*watch.ENDS, *watch.HELD), 0) | {"requests": 2, "requests_completed": 2}
    assert balance.differences(agreeing) == []
    assert balance.differences(agreeing | {"emitted_tokens": 11}) == [
        "the counter emitted_tokens is 11, but the answers' figures add up to 10"
    ]
    assert balance.differences(agreeing | {"emitted_tokens": 11}, others=True) == []
    assert len(balance.differences(agreeing | {"emitted_tokens": 9}, others=True)) == 1
    assert balance.differences(agreeing | {"requests": 3}) == ["3 requests were taken, but 2 ended"]
    assert balance.differences(agreeing | {"kv_used_tokens": 7}) == ["kv_used_tokens is 7 when nothing is asked"]


@pytest.mark.slow
def test_it_runs(tiny_recipe: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{number} and {number * number}"}) + "\n" for number in range(8)))
    arguments = ["-c", str(tiny_recipe), "--prompts", str(prompts), "--count", "20", "--max-tokens", "12", "--soak-seconds", "6"]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "SPECBUILD_HOME": str(tiny_recipe.parent / "store")}
    command = [sys.executable, str(ROOT / "scripts" / "served.py"), *arguments]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode in (0, 4), ran.stderr
    identity, seeds, soak = map(json.loads, ran.stdout.splitlines())
    assert identity["problems"] == seeds["problems"] == []
    assert identity["tokens"] == identity["counters"]["emitted_tokens"] > 100
    assert identity["counters"]["spec_decode_num_accepted_tokens"] > 0
    # Seconds are no warm-up: what memory and threads do in them says nothing.
    assert [problem for problem in soak["problems"] if "memory" not in problem and "threads" not in problem] == []
    seen, counted = soak["seen"], soak["counters"]
    assert seen["answered"] > 0
    assert seen["killed"] > 0
    assert seen["left_before_any"] + seen["left_with_tokens"] > 0
    assert counted["requests_cancelled"] > 0
    assert counted["requests_completed"] >= seen["answered"]
