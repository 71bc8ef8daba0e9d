"""How much of a prompt is read at a time, and which of its tokens need not be read at all."""

from __future__ import annotations

import pytest

from specbuild.runtime.pace import LARGEST, SMALLEST, Pace
from specbuild.runtime.prefixes import Prefixes


def test_the_pace_of_reading_follows_the_rounds() -> None:
    pace = Pace(2.0)
    assert pace.tokens(0, 1) == LARGEST
    assert pace.tokens(1, 2) == SMALLEST
    pace.round_took(1, 0.010)
    pace.reading_took(100, 0.050)
    assert pace.tokens(1, 2) == 40
    for _ in range(100):
        pace.round_took(1, 0.030)
    assert pace.tokens(1, 2) == pytest.approx(120, abs=1)
    pace.round_took(8, 0.200)
    assert pace.tokens(1, 2) == pytest.approx(120, abs=1), "one guest: the usual gap is theirs that run"
    assert pace.tokens(1, 9) == LARGEST, "more are to come: their round is soon the usual one"
    for _ in range(100):
        pace.round_took(4, 0.005)
    assert pace.tokens(4, 5) == 20
    assert pace.tokens(4, 6) == 80, "two that wait are read four times as fast as one"
    assert pace.tokens(4, 7) == LARGEST
    assert Pace(None).tokens(1, 2) > 10**9


def test_the_pace_knows_that_a_small_piece_costs_more_a_token() -> None:
    pace = Pace(2.0)
    pace.round_took(1, 0.004)
    for tokens in (4, 16, 4, 64, 8):
        pace.reading_took(tokens, 0.003 + 0.0005 * tokens)
    assert pace.tokens(1, 2) == pytest.approx(10, abs=1)
    for _ in range(200):  # pieces that are all alike say nothing of a smaller one
        pace.reading_took(10, 0.020)
    assert pace.tokens(1, 2) == 4


def test_a_text_is_found_by_its_longest_shared_beginning() -> None:
    prefixes, text = Prefixes(1000), list(range(100))
    prefixes.put(text[:50], "short")
    prefixes.put([7] * 60, "other")
    assert prefixes.find([*text[:40], 999, 999]) == ("short", 40)
    prefixes.put(text, "long")
    assert prefixes.held == 160, "the short one is part of the long one"
    assert prefixes.find([*text, 5]) == ("long", 100)
    assert prefixes.find(text[:20]) == (None, 0)
    assert prefixes.knows(text[:70])
    assert not prefixes.knows([*text, 1])


def test_the_least_recently_used_text_goes_first() -> None:
    prefixes = Prefixes(150)
    for start in (0, 1000):
        prefixes.put(list(range(start, start + 60)), start)
    prefixes.find(list(range(60)))
    prefixes.put(list(range(2000, 2060)), 2000)
    assert prefixes.held == 120
    assert prefixes.find(list(range(60))) == (0, 60)
    assert prefixes.find(list(range(1000, 1060))) == (None, 0)
