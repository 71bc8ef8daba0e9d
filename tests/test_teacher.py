"""The engines of a bundle as a teacher: what each prompt is answered with does not depend on the others."""

from __future__ import annotations

from pathlib import Path

from specbuild.builders.training.teacher import Wish
from specbuild.bundle import Bundle
from specbuild.teacher import EngineTeacher


def test_each_wish_gets_its_own_answer_whatever_their_lengths(tiny_bundle: Path) -> None:
    teacher = EngineTeacher(Bundle.open(tiny_bundle), threads=1)
    lengths, limits, temperatures = (9, 2, 30, 5, 2, 17), (4, 7, 3, 6, 5, 2), (0, 1, 0.7, 1, 1, 0)
    wishes = [
        Wish(tuple(range(40 + seed, 40 + seed + length)), limit, seed, temperature)
        for seed, (length, limit, temperature) in enumerate(zip(lengths, limits, temperatures, strict=True))
    ]
    written = teacher.write(wishes)
    assert written == [answer for wish in wishes for answer in teacher.write([wish])]
    assert len(set(written)) == len(wishes)
