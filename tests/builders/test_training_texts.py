"""Texts for training: dialogues by the seed alone, shards that are whole or not there, the vocabulary that comes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_support import END, Parrot

from specbuild.builders.training.corpus import Text, load_texts, save_texts, shard_file, whole
from specbuild.builders.training.dialogues import Frame, Writer
from specbuild.builders.training.sources import Answered, Given, SelfWritten
from specbuild.builders.training.vocabulary import choose


def text(*tokens: int, learned: int = 0) -> Text:
    return Text("some", np.array(tokens, np.int32), np.arange(len(tokens)) >= learned)


def test_the_frame_is_what_the_template_puts_around_a_turn() -> None:
    frame = Frame(Parrot())
    assert (frame.opening, frame.closing, frame.between) == ("[user]", "<|end|>[assistant]", "<|end|>[user]")


def test_a_shard_depends_on_seed_and_number_alone() -> None:
    passages = [list(range(97, 97 + 20)) * 10]
    first = [Writer(Parrot(), seed=7, answer_tokens=12).shard(1, 30, passages) for _ in range(2)]
    assert first[0] == first[1]
    assert first[0] != Writer(Parrot(), seed=8, answer_tokens=12).shard(1, 30, passages)
    assert first[0] != Writer(Parrot(), seed=7, answer_tokens=12).shard(2, 30, passages)


def test_answers_are_what_the_target_wrote_after_the_assistant_was_to_speak() -> None:
    parrot = Parrot()
    dialogues = Writer(parrot, seed=1, answer_tokens=12).shard(0, 40, [])
    asked = parrot.encode("[assistant]")
    assert {dialogue.kind for dialogue in dialogues} <= {"question", "problem", "passage", "translation"}
    assert any(len(dialogue.answers) == 2 for dialogue in dialogues)
    for dialogue in dialogues:
        for start, end in dialogue.answers:
            assert dialogue.tokens[start - len(asked) : start] == asked
            assert 0 < end - start <= 24
            assert set(dialogue.tokens[start:end]) <= {*range(97, 123), END}


def test_without_earlier_passages_none_is_asked_about_and_with_them_some_are() -> None:
    passages = [[ord("Q")] * 200]
    kinds = {dialogue.kind for dialogue in Writer(Parrot(), seed=1, answer_tokens=8).shard(1, 60, passages)}
    assert {"task", "retrieval"} <= kinds


def test_half_of_the_answers_are_greedy() -> None:
    parrot = Parrot()
    Writer(parrot, seed=1, answer_tokens=50).shard(0, 100, [])
    answers = [wish for wish in parrot.wishes if wish.max_tokens == 50]
    greedy = sum(wish.temperature == 0 for wish in answers) / len(answers)
    assert 0.35 < greedy < 0.65


def test_texts_survive_the_disk_and_a_cut_shard_does_not_count(tmp_path: Path) -> None:
    file = shard_file(tmp_path / "texts", 3)
    save_texts(file, [text(1, 2, 3, learned=1), text(4, 5)])
    assert [(found.kind, found.tokens.tolist(), found.learned.tolist()) for found in load_texts(file)] == [
        ("some", [1, 2, 3], [False, True, True]),
        ("some", [4, 5], [True, True]),
    ]
    assert whole(file)
    file.write_bytes(file.read_bytes()[:-3])
    assert not whole(file)
    assert not whole(shard_file(tmp_path, 4))


def test_passages_come_from_earlier_shards(tmp_path: Path) -> None:
    source = SelfWritten(Writer(Parrot(), seed=1, answer_tokens=40))
    passage = Text("passage", np.full(100, ord("Q"), np.int32), np.ones(100, np.bool_))
    save_texts(tmp_path / "0.safetensors", [passage])
    about = [found for found in source.shard(1, [tmp_path / "0.safetensors"]) if found.kind in ("task", "retrieval")]
    assert about
    assert all((found.tokens == ord("Q")).sum() >= 50 for found in about)


def test_a_users_prompts_are_answered_greedily_and_sampled_and_come_to_an_end() -> None:
    parrot = Parrot()
    source = Answered(parrot, [[65, 66], [67], [68] * 250], seed=0, answer_tokens=10)
    found = source.shard(0, [])
    assert [wish.temperature for wish in parrot.wishes] == [0.0, 0.7] * 2, "the prompt that leaves no room for an answer is left out"
    assert [one.tokens[:1].tolist() for one in found] == [[65], [65], [67], [67]]
    assert not found[0].learned[:2].any()
    assert found[0].learned[2:].all()
    assert source.shard(1, []) == []


@pytest.mark.parametrize(("max_seq_len", "pieces"), [(2048, [512, 488]), (400, [400, 400, 200])])
def test_plain_text_is_learned_whole_in_pieces_that_the_target_can_read(max_seq_len: int, pieces: list[int]) -> None:
    source = Given(list(range(1000)), max_seq_len=max_seq_len)
    found = source.shard(0, [])
    assert [len(one.tokens) for one in found] == pieces
    assert all(one.learned.all() for one in found)
    assert source.shard(1, []) == []


@pytest.mark.parametrize(("size", "expected"), [(64, 64), (65, 128), (1000, 300)])
def test_the_vocabulary_has_the_most_written_tokens(size: int, expected: int) -> None:
    written = text(*range(100), 7, 7)
    chosen = choose([written], size=size, total=300, always=[END])
    assert len(chosen.ids) == expected
    assert {7, END} <= set(chosen.ids.tolist())
    assert (np.diff(chosen.ids) > 0).all()


def test_written_tokens_count_more_than_read_ones() -> None:
    read, written = text(*[5] * 4, learned=4), text(*[200] * 2)
    assert choose([read, written], size=64, total=300, always=[*range(100, 163)]).ids.tolist()[-1] == 200
