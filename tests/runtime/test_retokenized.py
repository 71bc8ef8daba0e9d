"""A draft model of another vocabulary: the output is the target's own, and what it drafts is what its text says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import END, save_tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.errors import VerificationError
from specbuild.probe import probe
from specbuild.recipe import Recipe
from specbuild.runtime.engine import Step
from specbuild.runtime.generator import Completion, Generator
from specbuild.runtime.proposers.draft_model import DraftModelProposer
from specbuild.runtime.proposers.retokenized import RetokenizedProposer
from specbuild.runtime.sampling import SamplingParams

PROMPTS = ["The cat sat on the mat. The cat", "读万卷书，行万里路。🙂🙂", "é", "x" * 90]
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("c", "a"), ("Ġ", "ca"), ("Ġca", "t"), ("å", "Ľ"), ("x", "x"), ("xx", "xx"))
LETTERS = [*range(32, 127), 10]
"""A vocabulary of whole characters: a random model writes no broken ones, and every text has one spelling."""


def letters(order: list[int]) -> Tokenizer:
    """Characters and ``<|end|>``, the id of symbol i being ``order[i]``."""
    symbols = ["".join(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(c))[0][0]) for c in LETTERS]
    made = Tokenizer(models.BPE(vocab={symbol: order[place] for place, symbol in enumerate([*symbols, END])}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return made


def save_letters(folder: Path, order: list[int]) -> Path:
    """The same model of text whatever ``order`` is: rows of the embedding, tied to the head, stand where the ids say."""
    end = order[len(LETTERS)]
    save_tiny(folder, vocab_size=len(order), eos_token_id=end, bos_token_id=end)
    letters(order).save(str(folder / "tokenizer.json"))
    tensors = load_file(folder / "model.safetensors")
    rows = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = np.ascontiguousarray(rows[np.argsort(order)])
    save_file(tensors, folder / "model.safetensors")
    return folder


def built(folder: Path, target: Path, draft: Path, **speculation: Any) -> Bundle:
    section = {"checkpoint": str(draft), "precision": "float32", "vocabulary": "own"}
    speculation = {"hybrid_model": "draft_model", "merged": ["ngram", "draft"], **speculation}
    document = {
        "name": "pair",
        "checkpoint": str(target),
        "target": {"precision": "float32", "max_seq_len": 256, "max_batch_size": 4},
        "speculation": {"method": "draft_model", "draft": section, **speculation},
    }
    return build(Recipe.model_validate(document), store=Store(folder / "store"), probe=probe).bundle


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A target of bytes and a draft model that joins some of them, under ids of its own."""
    folder = tmp_path_factory.mktemp("strangers")
    draft = save_tiny(folder / "draft", seed=3, tokens=("<|tool|>",), merges=MERGES, vocab_size=280, num_hidden_layers=1)
    return built(folder, save_tiny(folder / "target"), draft)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two models that write the same text in other ids."""
    folder = tmp_path_factory.mktemp("twins")
    size = len(LETTERS) + 1
    order = np.random.default_rng(0).permutation(size).tolist()
    return built(folder, save_letters(folder / "target", list(range(size))), save_letters(folder / "draft", order))


def assert_idle(generator: Generator) -> None:
    proposer = generator._proposers["draft_model"]
    assert isinstance(proposer, RetokenizedProposer)
    assert isinstance(proposer._model, DraftModelProposer)
    proposer._model._model.check()
    assert (proposer._copies, proposer._model._model.owners) == ({}, ())


def answers(generator: Generator, **options: Any) -> list[Completion]:
    """Of every prompt, and of tokens that are parts of characters."""
    prompts = [*PROMPTS, generator.encode("🙂")[:3]]
    return generator.generate(prompts, SamplingParams(**{"max_tokens": 40, "seed": 5, "ignore_eos": True, **options}))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", ["draft_model", "cascade", "hybrid", "merged"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_output_is_the_targets_own(strangers: Bundle, method: str, temperature: float, batch: int) -> None:
    generator = Generator(strangers, batch=batch, threads=1, interactive=batch > 1)
    plain = answers(generator, speculation="off", temperature=temperature)
    # Fixed: this model costs as much as its target, so a service that may choose never asks it.
    shape = {"draft_len": 3, "tree_budget": 7} if method == "merged" else {"draft_len": 3}
    drafted = answers(generator, speculation=method, temperature=temperature, **shape)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert sum(one.stats.num_draft_tokens for one in drafted) > 0
    assert_idle(generator)


@pytest.mark.parametrize("rule", ["block", "token"])
def test_other_rules_take_its_drafts_as_points(twins: Bundle, rule: str) -> None:
    generator = Generator(twins, batch=3, threads=1, verification=rule)
    assert all(one.stats.num_draft_tokens for one in answers_of_letters(generator, temperature=1))
    greedy = answers_of_letters(generator, temperature=0)
    assert [one.token_ids for one in greedy] == [one.token_ids for one in answers_of_letters(generator, temperature=0, speculation="off")]


def answers_of_letters(generator: Generator, **options: Any) -> list[Completion]:
    prompts = ["A", PROMPTS[0], "the quick brown fox\njumps over " * 6]
    return generator.generate(prompts, SamplingParams(**{"max_tokens": 50, "seed": 5, "ignore_eos": True, **options}))


@pytest.mark.parametrize("method", ["draft_model", "cascade"])
def test_the_same_model_in_other_ids_is_right_every_time(twins: Bundle, method: str) -> None:
    generator = Generator(twins, batch=3, threads=1)
    for one in answers_of_letters(generator, temperature=0, speculation=method, draft_len=4):
        assert one.stats.num_draft_tokens == one.stats.num_accepted_tokens == 40


def test_the_text_is_read_once(twins: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the draft's engine is given: its prompt, then the tokens that are new, and now and then the last words in other tokens."""
    generator = Generator(twins, batch=1, threads=1, remember=1000)
    generator._proposers["draft_model"]
    engine = generator._proposers.engine("draft")
    given: list[int] = []
    forward = engine.forward

    def watched(step: Step, *arguments: Any) -> Any:
        given.append(step.input_ids.size)
        return forward(step, *arguments)

    monkeypatch.setattr(engine, "forward", watched)
    prompt = "the quick brown fox jumps over " * 6
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, draft_len=4)
    (once,) = generator.generate([prompt], params)
    assert len(prompt) + 40 <= sum(given) <= len(prompt) + 50
    given.clear()
    (again,) = generator.generate([prompt], params)
    assert sum(given) < 2 * 50 + 100, "most of the prompt is remembered"
    assert again.token_ids == once.token_ids


@pytest.mark.parametrize("passes", [0, 2, 5, 9])
def test_an_interruption_leaves_nothing_behind(twins: Bundle, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(twins, batch=3, threads=1)
    expected = answers_of_letters(generator)
    engine, left = generator._proposers.engine("draft"), iter(range(passes))
    forward = engine.forward

    def interrupted(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return forward(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answers_of_letters(generator)
    assert_idle(generator)
    assert [one.token_ids for one in answers_of_letters(generator)] == [one.token_ids for one in expected]


def test_a_text_that_the_draft_has_no_room_for_gets_no_drafts(twins: Bundle) -> None:
    """Where a token of the target is several of the draft's: the prompt fits the one and not the other, or the answer outgrows it."""
    entry = twins.engine("draft")
    entry = entry.model_copy(update={"max_seq_len": 40, "capacity": 40 + entry.max_step - 1})
    engines = tuple(entry if one.role == "draft" else one for one in twins.manifest.engines)
    small = Bundle(twins.path, twins.manifest.model_copy(update={"engines": engines}))
    generator = Generator(small, batch=3, threads=1)
    growing, short, long = ("A" * 20, "B", "C" * 150)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, speculation="draft_model") for n in (60, 20, 20)]
    one, other, none = generator.generate([growing, short, long], params)
    assert 10 <= one.stats.num_draft_tokens == one.stats.num_accepted_tokens <= 20
    assert other.stats.num_draft_tokens == other.stats.num_accepted_tokens == 16
    assert none.stats.num_draft_tokens == 0
    plain = Generator(twins, batch=3, threads=1).generate([growing, short, long], [replace(each, speculation="off") for each in params])
    assert [each.token_ids for each in (one, other, none)] == [each.token_ids for each in plain]


def test_the_drafts_tokenizer_is_a_part_of_the_bundle(twins: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(twins.path, folder)
    assert Bundle.open(folder).engine("draft").tokenizer == "tokenizer/draft"
    (folder / "tokenizer/draft/tokenizer.json").unlink()
    with pytest.raises(VerificationError, match=r"tokenizer/draft/tokenizer.json: sha256 is missing"):
        Bundle.open(folder)
