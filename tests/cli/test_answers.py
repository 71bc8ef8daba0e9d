"""Answers that run side by side, shown one after the other; characters put down to the token that made them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specbuild.bundle import Bundle
from specbuild.cli.answers import Painter, in_order
from specbuild.runtime.generator import Completion, Delta
from specbuild.runtime.stats import RequestCounter
from specbuild.runtime.tokenizer import Tokenizer

DONE = Completion("", (), "stop", None, 0, (), RequestCounter(1).freeze())


def delta(index: int, text: str, tokens: tuple[int, ...] = (), accepted: int = 0, *, last: bool = False) -> Delta:
    return Delta(index, text, tokens, accepted, len(tokens), (), DONE if last else None)


def test_answers_come_in_the_order_of_the_prompts_and_each_as_early_as_may_be() -> None:
    seen: list[str] = []

    def side_by_side() -> Iterator[Delta]:
        for index, text, last in [(1, "c", False), (0, "a", False), (2, "e", True), (1, "d", True), (0, "b", True), (3, "f", True)]:
            seen.append(f"<{text}")
            yield delta(index, text, last=last)

    for shown in in_order(side_by_side()):
        seen += [shown.text]
    assert seen == ["<c", "<a", "a", "<e", "<d", "<b", "b", "c", "d", "e", "<f", "f"]


def tokenizer(bundle: Path) -> Tokenizer:
    return Tokenizer(bundle / "tokenizer", Bundle.open(bundle).manifest.vocabulary)


def test_a_character_belongs_to_the_token_that_completes_it(tiny_bundle: Path) -> None:
    words = tokenizer(tiny_bundle)
    euro = tuple(words.encode("€"))
    a, b = (words.encode(letter)[0] for letter in "ab")
    assert len(euro) == 3
    painter = Painter(words, [a])
    assert painter.spans(delta(0, "ab", (a, b), 1)) == [("a", True), ("b", False)]
    # Two of its three bytes were drafted, the third was not.
    assert painter.spans(delta(0, "", euro[:2], 2)) == []
    assert painter.spans(delta(0, "€", euro[2:], 0)) == [("€", False)]
    assert painter.spans(delta(0, "", (a, *euro[:1]), 1)) == [], "text that lags behind (a stop string may come)"
    assert painter.spans(delta(0, "a€b", (*euro[1:], b), 2)) == [("a€", True), ("b", False)]


def test_what_no_token_completed_is_not_the_drafts(tiny_bundle: Path) -> None:
    words = tokenizer(tiny_bundle)
    painter = Painter(words, words.encode("a"))
    assert painter.spans(delta(0, "\ufffd", tuple(words.encode("€")[:1]), 1, last=True)) == [("\ufffd", False)]
