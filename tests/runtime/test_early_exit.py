"""A real tiny target cut in two: bit for bit the whole one, its shared layers read each token once, and its first layers draft."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import head_support
import numpy as np
import pytest
from head_support import save_head, save_target
from numpy.typing import NDArray

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle, StepCost
from specbuild.errors import BundleError
from specbuild.probe import probe
from specbuild.recipe import LOWER, Recipe
from specbuild.runtime.draft_length import DraftTimes
from specbuild.runtime.engine import Engine, KvStorage, Step
from specbuild.runtime.engines import load
from specbuild.runtime.engines.split import SplitEngine, SplitStorage, part_entries
from specbuild.runtime.generator import Generator
from specbuild.runtime.model import CachedModel, Feed
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.step_times import StepTimes

CUT = 2
PROMPTS = [[65, 66, 67, 32, 68] * 6, [70], list(range(40, 75)), [90, 91, 92]]
Floats = NDArray[np.float32]


class Bundles:
    """The same target whole and cut, by precision; each built once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = save_target(folder / "target")
        self.heads = {"eagle3": {"checkpoint": str(save_head(folder / "eagle3", *head_support.eagle3())), "precision": "int8"}}
        self.made: dict[tuple[str, int], Bundle] = {}

    def __call__(self, precision: str, cut: int = 0) -> Bundle:
        if (precision, cut) not in self.made:
            speculation = {"heads": self.heads} | ({"early_exit": {"layers": cut}, "hybrid_model": "early_exit"} if cut else {})
            target = {"precision": precision, "max_seq_len": 160, "max_batch_size": 4}
            document = {"name": "cut", "checkpoint": str(self.checkpoint), "target": target, "speculation": speculation}
            store = Store(self.folder / "store")
            self.made[precision, cut] = build(Recipe.model_validate(document), store=store, probe=probe).bundle
        return self.made[precision, cut]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("exit"))


def model(bundle: Bundle, rows: int = 1) -> CachedModel:
    return CachedModel(load(bundle.path, bundle.engine("target")), rows)


def asked(method: str, temperature: float = 0.0, **others: Any) -> SamplingParams:
    return SamplingParams(temperature=temperature, speculation=method, **{"max_tokens": 40, "seed": 5, "ignore_eos": True, **others})


def plain(bundles: Bundles, params: SamplingParams, precision: str = "int8") -> list[tuple[int, ...]]:
    """What the whole target writes, each prompt alone."""
    opened = Generator(bundles(precision), batch=1)
    alone = [SamplingParams(**{**vars(params), "speculation": "off", "draft_len": None, "seed": seed}) for seed in range(len(PROMPTS))]
    return [opened.generate([prompt], each)[0].token_ids for prompt, each in zip(PROMPTS, alone, strict=True)]


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_the_two_parts_are_the_whole_bit_for_bit(bundles: Bundles, precision: str, cut: int) -> None:
    """Logits, and the hidden states of heads: of ragged rows, a chain, a tree whose branch stays, and what follows it."""
    found: list[list[Floats]] = []
    for bundle in (bundles(precision), bundles(precision, cut)):
        target, seen = model(bundle, 3), list[Floats]()
        for row in range(3):
            target.cache.reserve(row)
            hidden = target.prefill(row, range(5 + 20 * row, 10 + 40 * row))
            assert hidden is not None
            seen.append(hidden)
        feeds: Mapping[Hashable, Feed] = {
            0: Feed((3, 4, 5), wanted=(0, 1, 2)),
            2: Feed((9, 8, 7, 6), parents=(-1, 0, 0, 2), wanted=(0, 1, 2, 3)),
        }
        for feed in (feeds, {0: Feed((1,), wanted=(0,)), 1: Feed((2,), wanted=(0,)), 2: Feed((3,), wanted=(0,))}):
            seen += [rows.copy() for rows in target.feed(feed).values()]
            seen += [target.hidden(owner)[: len(each.tokens)].copy() for owner, each in feed.items()]
            for owner, each in feed.items():
                target.cache.commit(owner, np.array([0, 2, 3]) if each.parents else np.arange(len(each.tokens)))
        found.append(seen)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def begun(opened: CachedModel, owner: Hashable, text: Sequence[int]) -> CachedModel:
    opened.begin(owner, text)
    opened.prefill(owner, text)
    opened.start(owner, text)
    return opened


def some(random: np.random.Generator, owners: Iterable[Hashable], share: float) -> list[Hashable]:
    return [owner for owner in owners if random.random() < share]


def drafted(
    random: np.random.Generator, lower: CachedModel, group: Sequence[Hashable], texts: Mapping[Hashable, list[int]]
) -> dict[Hashable, list[int]]:
    """Tokens after the last of each text in ``group``, that one first; the lower part reads all but the last, in passes that some miss."""
    lengths, tokens = {owner: lower.length(owner) for owner in group}, {owner: texts[owner][-1:] for owner in group}
    view = max(lower.cache.lengths.tolist(), default=0) + lower.engine.entry.max_step
    for _ in range(random.integers(1, 4)):
        going = some(random, group, 0.8)
        if going:
            lower.feed({owner: Feed((tokens[owner][-1],)) for owner in going}, view=view)
        for owner in going:
            lower.cache.commit(owner, np.arange(1))
            tokens[owner].append(int(random.integers(256)))
    for owner, length in lengths.items():
        lower.cache.truncate(owner, length)
    return tokens


@pytest.mark.parametrize("precision", ["float32", "int4"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_was_read_ahead_the_logits_are_those_of_the_text(bundles: Bundles, precision: str, seed: int) -> None:
    """Rows are drafted for or not, drafts are followed, in part, in a tree or not at all, rows are given back and taken again."""
    random = np.random.default_rng(seed)
    alone, cut = model(bundles(precision), 1), model(bundles(precision, CUT), 4)
    assert isinstance(cut.engine, SplitEngine)
    lower, texts, checked = cut.sharing(cut.engine.lower), dict[Hashable, list[int]](), 0
    for number in range(60):
        if len(texts) < 4:
            texts[number] = random.integers(0, 256, random.integers(1, 50)).tolist()
            begun(cut, number, texts[number][:-1])
        drafts = {owner: text[-1:] for owner, text in texts.items()}
        for _ in range(random.integers(0, 3)):  # groups of sequences draft one after the other
            drafts |= drafted(random, lower, some(random, texts, 0.7), texts)
        feeds: dict[Hashable, Feed] = {}
        for owner, draft in drafts.items():
            tokens = [*draft[: random.integers(1, len(draft) + 1)], *random.integers(0, 256, random.integers(0, 3)).tolist()]
            parents = tuple(max(-1, place - 1 - int(random.random() < 0.1)) for place in range(len(tokens)))
            feeds[owner] = Feed(tuple(tokens), parents, wanted=tuple(range(len(tokens))))
        for owner, rows in cut.feed(feeds).items():
            alone.cache.reserve("text")
            alone.prefill("text", texts[owner][:-1])
            np.testing.assert_array_equal(rows, alone.feed({"text": feeds[owner]})["text"])
            alone.release("text")
            checked += 1
        for owner, feed in feeds.items():
            kept = len(feed.tokens) if feed.parents == tuple(range(-1, len(feed.tokens) - 1)) else 1
            cut.cache.commit(owner, np.arange(kept))
            texts[owner] += [*feed.tokens[1:kept], int(random.integers(256))]
        for owner in [owner for owner, text in texts.items() if len(text) > 140 or random.random() < 0.1]:
            cut.release(owner)
            del texts[owner]
    assert checked > 100


@pytest.mark.parametrize("text", [(65, 66, 67), (70, 71, 72)])
@pytest.mark.parametrize("view", [0, 128])
def test_what_was_read_ahead_of_another_text_or_view_is_forgotten(bundles: Bundles, text: tuple[int, ...], view: int) -> None:
    """The same tokens at the same place mean something else behind another text; a view that changes keeps valid positions alone."""
    cut = begun(model(bundles("int8", CUT)), "first", (65, 66, 67))
    assert isinstance(cut.engine, SplitEngine)
    cut.sharing(cut.engine.lower).feed({"first": Feed((7, 8, 9))})
    if text != (65, 66, 67):
        cut.release("first")
        begun(cut, "second", text)
    feed = Feed((7, 8, 9, 5), wanted=(0, 1, 2, 3))
    (found,) = cut.feed({cut.owners[0]: feed}, view=view).values()
    np.testing.assert_array_equal(found, begun(model(bundles("int8")), "alone", text).feed({"alone": feed})["alone"])


@pytest.mark.parametrize("interactive", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["early_exit", "hybrid"])
def test_the_output_is_the_whole_targets(bundles: Bundles, method: str, temperature: float, interactive: bool) -> None:
    wanted = plain(bundles, asked("off", temperature))
    opened = Generator(bundles("int8", CUT), interactive=interactive)
    lengths = [None] * 4 if interactive else [4, 7, 1, 3]
    params = [asked(method, temperature, seed=seed, draft_len=length) for seed, length in enumerate(lengths)]
    answers = opened.generate(PROMPTS, params)
    assert [answer.token_ids for answer in answers] == wanted
    assert sum(answer.stats.num_accepted_tokens for answer in answers) > 0


def test_methods_that_share_the_rows_do_not_disturb_each_other(bundles: Bundles) -> None:
    """Hybrid and early exit draft in the same rows one after the other; lookup and heads bring longer drafts, and some bring none."""
    wanted = plain(bundles, asked("off", 0.9))
    for methods in (["early_exit", "hybrid", "ngram", "off"], ["hybrid", "early_exit", "early_exit", "eagle3"]):
        opened = Generator(bundles("int8", CUT))
        answers = opened.generate(PROMPTS, [asked(method, 0.9, seed=seed) for seed, method in enumerate(methods)])
        assert [answer.token_ids for answer in answers] == wanted


def test_a_text_that_is_known_is_drafted_for_all_the_same(bundles: Bundles) -> None:
    opened = Generator(bundles("int8", CUT), remember=1000)
    prompt = list(range(30, 90))
    (first,) = opened.generate([prompt], asked("early_exit"))
    (second,) = opened.generate([[*prompt, *first.token_ids[:20]]], asked("early_exit", max_tokens=20))
    assert (second.token_ids, second.stats.reused_tokens) == (first.token_ids[20:], len(prompt) + 19)
    assert second.stats.num_draft_tokens > 0


def test_who_leaves_in_the_middle_leaves_nothing_behind(bundles: Bundles) -> None:
    wanted = plain(bundles, asked("off", 0.9))
    opened = Generator(bundles("int8", CUT))
    for rounds in (1, 5, 9):
        stream = opened.stream(list(reversed(PROMPTS)), asked("early_exit", 0.9, seed=7))
        for _ in range(rounds):
            next(stream)
        stream.close()
    params = [asked("early_exit", 0.9, seed=seed) for seed in range(4)]
    assert [answer.token_ids for answer in opened.generate(PROMPTS, params)] == wanted


@pytest.mark.parametrize("calls", [0, 2, 9])
def test_a_draft_that_breaks_off_leaves_nothing_behind(bundles: Bundles, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Tokens that were only drafted are valid in the rows for as long as the drafting goes on."""
    wanted, opened, keep = plain(bundles, asked("off", 0.9)), Generator(bundles("int8", CUT)), SplitStorage.keep
    left = iter(range(calls))

    def breaking(storage: SplitStorage, *given: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        keep(storage, *given)

    params = [asked("early_exit", 0.9, seed=seed) for seed in range(4)]
    with monkeypatch.context() as patched:
        patched.setattr(SplitStorage, "keep", breaking)
        with pytest.raises(KeyboardInterrupt):
            opened.generate(PROMPTS[::-1], params)
    assert [answer.token_ids for answer in opened.generate(PROMPTS, params)] == wanted


class Counted:
    """An engine, and the shape (batch, new tokens) of each of its passes."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.entry = engine, engine.entry
        self.passes: list[tuple[int, ...]] = []

    def new_storage(self, rows: int) -> KvStorage:
        return self.engine.new_storage(rows)

    def forward(self, step: Step, storage: KvStorage, first_row: int) -> Floats:
        self.passes.append(step.logit_rows.shape[:1] + step.position_ids.shape[1:])
        return self.engine.forward(step, storage, first_row)

    @property
    def hidden(self) -> Floats | None:
        return self.engine.hidden

    def predict(self, features: Floats) -> Floats:
        return self.engine.predict(features)

    @property
    def tokens(self) -> int:
        return sum(batch * step for batch, step in self.passes)


def counted(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Generator, Counted, Counted]:
    """A generator whose target says how often each part runs; ``changes`` to what was measured."""
    entry = bundle.engine("target")
    assert entry.probe is not None
    lower, upper = (Counted(load(bundle.path, part)) for part in part_entries(entry))
    engine = SplitEngine(entry.model_copy(update={"probe": entry.probe.model_copy(update=changes)}), lower, upper)
    monkeypatch.setattr("specbuild.runtime.generator.load", lambda *given, **options: engine)
    return Generator(bundle), lower, upper


@pytest.mark.parametrize("rows", [1, 3])
def test_the_shared_layers_read_each_token_once(bundles: Bundles, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    opened, lower, upper = counted(bundles("int8", CUT), monkeypatch)
    answers = opened.generate([PROMPTS[2]] * rows, asked("early_exit", draft_len=4))
    rounds = answers[0].stats.num_spec_steps
    assert len(upper.passes) == rows + rounds, "the prompts, then a pass a round"
    assert upper.passes[rows] == (rows, 5)
    assert lower.passes[rows : rows + 5] == [(rows, 1)] * 5, "four that are drafted from, then the last that was drafted"
    assert lower.tokens == upper.tokens, "every token once"
    assert len(lower.passes) > 4 * (rounds - 2)


def test_where_bits_depend_on_the_step_nothing_is_read_ahead(bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plain(bundles, asked("off"))[0]
    opened, lower, upper = counted(bundles("int8", CUT), monkeypatch, step_invariant=False)
    answers = opened.generate(PROMPTS[:1], asked("early_exit", seed=0, draft_len=4))
    lower_passes, upper_passes = lower.passes[1:], upper.passes[1:]
    assert answers[0].token_ids == wanted
    assert set(upper_passes) == {(1, 8)}, "every pass that decodes is padded"
    assert set(lower_passes) == {(1, 8)}
    assert len(lower_passes) == answers[0].stats.num_draft_tokens + len(upper_passes)


def test_a_whole_target_does_not_exit_early(bundles: Bundles) -> None:
    with pytest.raises(BundleError, match=rf"no '{LOWER}' engine .*add a `speculation.early_exit` section"):
        Generator(bundles("int8")).generate(PROMPTS[:1], asked("early_exit"))


def test_both_parts_are_measured(bundles: Bundles) -> None:
    for role in ("target", LOWER):
        measured = bundles("int8", CUT).engine(role).probe
        assert measured is not None
        assert {cost.batch for cost in measured.step_costs} == {1, 2, 4}
        assert all(cost.seconds > 0 for cost in measured.step_costs)


def test_what_the_pass_that_verifies_need_not_read_is_not_counted_twice() -> None:
    """k drafted tokens: k + 1 passes of one token, in place of the shared layers' share of a pass over k + 1."""
    times = StepTimes([StepCost(batch=1, step=step, context=0, seconds=3 + step) for step in (1, 2, 8)])
    assert [DraftTimes(times, shared=True).seconds(1, length, 0) for length in (0, 1, 4)] == [0, 4 - 1, 16 - 4]
    assert [DraftTimes(times).seconds(1, length, 0) for length in (0, 1, 4)] == [0, 4, 16]
