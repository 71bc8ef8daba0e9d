"""The first layers of a tiny target draft for it: the output is its own, and the shared layers read each token once."""

from __future__ import annotations

from typing import Any

import pytest
from cut_target import CUT, PROMPTS, Bundles, Floats, asked, plain

from specbuild.bundle import Bundle, StepCost
from specbuild.errors import BundleError
from specbuild.recipe import LOWER
from specbuild.runtime.draft import Shape
from specbuild.runtime.draft_times import DraftTimes
from specbuild.runtime.engine import Engine, KvStorage, Step
from specbuild.runtime.engines import load
from specbuild.runtime.engines.split import SplitEngine, SplitStorage, part_entries
from specbuild.runtime.generator import Generator
from specbuild.runtime.step_times import StepTimes


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("exit"))


@pytest.mark.parametrize("interactive", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["early_exit", "hybrid"])
def test_the_output_is_the_whole_targets(bundles: Bundles, method: str, temperature: float, interactive: bool) -> None:
    wanted = plain(bundles, asked("off", temperature))
    opened = Generator(bundles("int8", CUT), interactive=interactive)
    params = [asked(method, temperature, seed=seed, draft_len=length) for seed, length in enumerate([4, 7, 1, None])]
    answers = opened.generate(PROMPTS, params)
    assert [answer.token_ids for answer in answers] == wanted
    assert sum(answer.stats.num_accepted_tokens for answer in answers) > 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_adapter_changes_what_is_drafted_and_nothing_else(bundles: Bundles, temperature: float) -> None:
    wanted = plain(bundles, asked("off", temperature))
    params = [asked("early_exit", temperature, seed=seed) for seed in range(4)]
    accepted = []
    for adapted in (False, True):
        answers = Generator(bundles("int8", CUT, adapted=adapted)).generate(PROMPTS, params)
        assert [answer.token_ids for answer in answers] == wanted
        accepted.append([answer.stats.num_accepted_tokens for answer in answers])
    assert accepted[0] != accepted[1]


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


@pytest.mark.parametrize(("rows", "adapted"), [(1, False), (3, False), (1, True)])
def test_the_shared_layers_read_each_token_once(bundles: Bundles, monkeypatch: pytest.MonkeyPatch, rows: int, adapted: bool) -> None:
    opened, lower, upper = counted(bundles("float32", CUT, adapted=adapted), monkeypatch)
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
    assert [DraftTimes(times, shared=True).seconds(1, Shape.chain(length), 0) for length in (0, 1, 4)] == [0, 4 - 1, 16 - 4]
    assert [DraftTimes(times).seconds(1, Shape.chain(length), 0) for length in (0, 1, 4)] == [0, 4, 16]
