"""``specbuild run``: the shapes it prints, and where each prompt may come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams

STATS = [
    "prompt_tokens",
    "emitted_tokens",
    "num_spec_steps",
    "num_draft_tokens",
    "num_accepted_tokens",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_by_position",
    "prefill_seconds",
    "decode_seconds",
    "engine_seconds",
    "draft_seconds",
    "tokens_per_second",
    "lossy",
]
Command = Callable[..., tuple[int, str, str]]


def answers(said: tuple[int, str, str]) -> list[dict[str, Any]]:
    code, out, err = said
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def write(file: Path, *documents: dict[str, Any]) -> str:
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(file)


def test_json_has_the_documented_shape_and_the_generators_answer(run_tiny: Command, tiny_bundle: Path) -> None:
    (answer,) = answers(run_tiny("--prompt", "Hello", "--raw", "--max-tokens", "12", "--json"))
    assert list(answer) == ["id", "text", "token_ids", "finish_reason", "stop_reason", "seed", "stats"]
    assert list(answer["stats"]) == STATS
    (expected,) = Generator.open(tiny_bundle).generate(["Hello"], SamplingParams(temperature=0, max_tokens=12))
    seen = (answer["id"], answer["text"], tuple(answer["token_ids"]), answer["finish_reason"])
    assert seen == (0, expected.text, expected.token_ids, expected.finish_reason)
    stats = answer["stats"]
    assert stats["prompt_tokens"] == 5
    assert stats["emitted_tokens"] == len(answer["token_ids"])
    assert stats["emitted_tokens"] == stats["num_spec_steps"] + stats["num_accepted_tokens"]
    assert stats["tokens_per_second"] == pytest.approx(stats["emitted_tokens"] / stats["decode_seconds"])


def test_a_line_a_prompt_in_their_order_whatever_the_batch(run_tiny: Command, tmp_path: Path) -> None:
    # The first prompts run longest: with a batch, later ones end before them.
    documents = [{"id": f"p{n}", "task": f"t{n % 2}", "prompt": "ab" * (9 - n)} for n in range(9)]
    file = write(tmp_path / "prompts.jsonl", *documents)
    alone = answers(run_tiny("--prompts", file, "--json", "--max-tokens", "20"))
    together = answers(run_tiny("--prompts", file, "--json", "--max-tokens", "20", "--batch", "4"))
    for one, other, document in zip(alone, together, documents, strict=True):
        assert list(one) == ["id", "task", "text", "token_ids", "finish_reason", "stop_reason", "seed", "stats"]
        assert (one["id"], one["task"]) == (other["id"], other["task"]) == (document["id"], document["task"])
        assert (one["text"], one["token_ids"]) == (other["text"], other["token_ids"])


@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.8", "--top-p", "0.95", "--repetition-penalty", "1.1", "--seed", "7")])
def test_output_does_not_depend_on_speculation(run_tiny: Command, sampling: tuple[str, ...]) -> None:
    def output(*arguments: str) -> list[int]:
        return list(answers(run_tiny("--prompt", "abcabcabc", "--json", "--max-tokens", "40", *sampling, *arguments))[0]["token_ids"])

    plain = output("--speculation", "off")
    assert len(set(plain)) > 3
    for method in ("ngram", "draft_model"):
        for length in ("1", "7"):
            assert output("--speculation", method, "--draft-len", length) == plain


def test_a_drawn_seed_is_reported_and_gives_the_text_again(run_tiny: Command) -> None:
    arguments = ("--prompt", "Hello", "--json", "--temperature", "1", "--max-tokens", "20")
    (first,) = answers(run_tiny(*arguments))
    (second,) = answers(run_tiny(*arguments))
    assert first["seed"] != second["seed"]
    assert first["token_ids"] != second["token_ids"]
    assert answers(run_tiny(*arguments, "--seed", str(first["seed"])))[0]["token_ids"] == first["token_ids"]


def test_text_goes_to_stdout_and_figures_to_stderr(run_tiny: Command, tmp_path: Path) -> None:
    file = write(tmp_path / "prompts.jsonl", {"prompt": "one"}, {"prompt": "two"})
    texts = [answer["text"] for answer in answers(run_tiny("--prompts", file, "--json", "--max-tokens", "9"))]
    code, out, err = run_tiny("--prompts", file, "--max-tokens", "9", "--seed", "5")
    assert (code, out) == (0, f"{texts[0]}\n\n{texts[1]}\n")
    lines = err.splitlines()
    assert len(lines) == 2, "a measured, invariant bundle has no notes"
    for line in lines:
        assert "tok/s" in line
        assert "τ" in line
        assert line.endswith("9 tokens (length) · speculation ngram · seed 5")


def test_stdin_is_a_prompt(run_tiny: Command) -> None:
    given = answers(run_tiny("--prompt", "héllo\nyou", "--json"))[0]["token_ids"]
    assert answers(run_tiny("--json", stdin="héllo\nyou\n".encode()))[0]["token_ids"] == given


def test_chat_where_there_is_a_template_unless_raw(run_tiny: Command, tmp_path: Path) -> None:
    def tokens(*arguments: str) -> int:
        return int(answers(run_tiny("--json", "--max-tokens", "1", *arguments))[0]["stats"]["prompt_tokens"])

    rendered = len("[user]") + 5 + 1 + len("[assistant]")
    assert tokens("--prompt", "Hello") == tokens("--prompt", "Hello", "--chat") == rendered
    assert tokens("--prompt", "Hello", "--raw") == 5
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "Hello"}]
    file = write(tmp_path / "messages.jsonl", {"messages": messages})
    assert tokens("--prompts", file) == tokens("--prompts", file, "--raw") == rendered + len("[system]x") + 1
    assert tokens("--prompts", write(tmp_path / "turns.jsonl", {"turns": ["Hello", "Bye"]})) == rendered


def test_a_stop_string_ends_the_text_before_itself(run_tiny: Command) -> None:
    text = answers(run_tiny("--prompt", "Hello", "--json", "--max-tokens", "30"))[0]["text"]
    stop = text[10:12]
    (cut,) = answers(run_tiny("--prompt", "Hello", "--json", "--max-tokens", "30", "--stop", "never", "--stop", stop))
    assert (cut["text"], cut["finish_reason"], cut["stop_reason"]) == (text[: text.index(stop)], "stop", stop)


def test_stop_ids_min_tokens_and_ignore_eos_reach_sampling(run_tiny: Command) -> None:
    def ids(*arguments: str) -> list[int]:
        return list(answers(run_tiny("--prompt", "Hello", "--json", "--max-tokens", "20", *arguments))[0]["token_ids"])

    plain = ids("--ignore-eos")
    assert len(plain) == 20
    assert ids("--ignore-eos", "--stop-token-id", str(plain[4])) == plain[: plain.index(plain[4]) + 1]
    assert len(ids("--ignore-eos", "--stop-token-id", str(plain[0]), "--min-tokens", "6")) >= 6


def test_logprobs_of_each_token(run_tiny: Command) -> None:
    (answer,) = answers(run_tiny("--prompt", "Hello", "--json", "--max-tokens", "6", "--logprobs", "2"))
    assert [entry["token"] for entry in answer["logprobs"]] == answer["token_ids"]
    assert all(entry["top"][0] == [entry["token"], entry["logprob"]] and len(entry["top"]) == 2 for entry in answer["logprobs"])


def test_on_a_terminal_accepted_draft_tokens_stand_apart(run_tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--prompt", "Hello", "--max-tokens", "40", "--speculation", "draft_model")
    text = run_tiny(*arguments)[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    coloured = run_tiny(*arguments)[1]
    assert "\x1b[32m" in coloured
    assert coloured.replace("\x1b[32m", "").replace("\x1b[0m", "") == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert run_tiny(*arguments)[1] == text


def test_a_recipe_is_built_the_first_time(run_tiny: Command, tiny_recipe: Path, home: Path) -> None:
    recipe = ("-c", str(tiny_recipe))
    arguments = ("--prompt", "Hello", "--max-tokens", "9", "--set", "target.max_seq_len=64", "--set", "target.precision=float32")
    code, text, err = run_tiny(*arguments, bundle=recipe)
    built, _ = err.splitlines()
    assert (code, built.startswith(f"built {home / 'tiny-'}")) == (0, True)
    code, again, err = run_tiny(*arguments, bundle=recipe)
    assert (code, again, len(err.splitlines())) == (0, text, 1)
