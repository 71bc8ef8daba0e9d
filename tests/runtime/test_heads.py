"""Draft heads at work on a real tiny target: what they draft is what their papers say, and the output is the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

import head_support
import numpy as np
import pytest
from head_reference import Floats, Reference
from head_support import DRAFT_IDS, HIDDEN, LAYERS, VOCABULARY, save_head, save_target
from safetensors.numpy import load_file

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.bundle import Bundle
from specbuild.errors import BundleError
from specbuild.probe import probe
from specbuild.recipe import Recipe
from specbuild.runtime.draft import Draft
from specbuild.runtime.engines import load
from specbuild.runtime.generator import Generator
from specbuild.runtime.model import CachedModel
from specbuild.runtime.proposers.base import Ask, Proposer, Seen
from specbuild.runtime.proposers.joint import Joint
from specbuild.runtime.proposers.layer_head import LayerHeadProposer
from specbuild.runtime.proposers.medusa import MedusaProposer
from specbuild.runtime.request import Running
from specbuild.runtime.sampling import SamplingParams

HEADS = ("mtp", "eagle3", "medusa")
PROMPTS = [[65, 66, 67, 32, 68] * 6, [70, 71], list(range(40, 75))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and its three heads, as their projects publish them."""
    folder = tmp_path_factory.mktemp("heads")
    save_target(folder / "target")
    save_head(folder / "mtp", *head_support.mtp("deepseek"))
    save_head(folder / "eagle3", *head_support.eagle3())
    save_head(folder / "medusa", *head_support.medusa())
    return folder


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    heads = {role: {"checkpoint": str(folder / role), "precision": "float32"} for role in HEADS}
    speculation = {"heads": heads, "method": "eagle3", "hybrid_model": "mtp", "draft": {}}
    target = {"precision": "float32", "max_seq_len": 128, "max_batch_size": 4}
    document = {"name": "heads", "checkpoint": str(folder / "target"), "target": target, "speculation": speculation}
    return build(Recipe.model_validate(document), store=Store(folder / "store"), probe=probe).bundle


class Watched(Proposer):
    """Another proposer, and what it drafted where it was asked to: (text, tokens asked for, draft)."""

    def __init__(self, inner: Proposer) -> None:
        self.inner = inner
        self.drafts: list[tuple[list[int], int, Draft]] = []

    def admit(self, sequence: Running) -> None:
        self.inner.admit(sequence)

    def read(self, sequence: Running, length: int) -> None:
        self.inner.read(sequence, length)

    def observe(self, sequence: Running, seen: Seen) -> None:
        self.inner.observe(sequence, seen)

    def start(self, sequence: Running) -> None:
        self.inner.start(sequence)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts = self.inner.propose(asks)
        given = zip(asks, drafts, strict=True)
        self.drafts += [(list(ask.sequence.tokens), ask.draft_len, draft) for ask, draft in given if ask.draft_len]
        return drafts

    def retire(self, sequence: Running) -> None:
        self.inner.retire(sequence)


def head(bundle: Bundle, method: str, rows: int = 4) -> Proposer:
    engine = load(bundle.path, bundle.engine(method))
    joint = Joint.of(bundle, method)
    return MedusaProposer(engine, joint) if method == "medusa" else LayerHeadProposer(CachedModel(engine, rows, padded=False), joint)


def asked(method: str, temperature: float = 0.0, **others: Any) -> SamplingParams:
    return SamplingParams(temperature=temperature, speculation=method, ignore_eos=True, **{"max_tokens": 24, "seed": 5, **others})


class Papers:
    """What a head drafts by its definition: the whole text through the target once, then the head's reference, no cache, no batch."""

    def __init__(self, folder: Path, bundle: Bundle, method: str) -> None:
        names = {"mtp": "model", "eagle3": "model", "medusa": "model"}
        tensors = load_file(folder / method / f"{names[method]}.safetensors")
        self.head = Reference(tensors, load_file(folder / "target" / "model.safetensors"))
        self.method, self.joint = method, Joint.of(bundle, method)
        self.engine = load(bundle.path, bundle.engine("target"))
        self.size = bundle.manifest.vocabulary.size
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...]], Floats] = {}

    def features(self, text: Sequence[int]) -> Floats:
        """[len(text) − 1,H·taps]"""
        model = CachedModel(self.engine, 1)
        model.cache.reserve("text")
        hidden = model.prefill("text", text[:-1])
        assert hidden is not None
        return self.joint.features(hidden)

    def after(self, text: Sequence[int], path: Sequence[int]) -> Floats:
        """[V] logits of the token that follows ``text`` and the drafted ``path``, those that cannot be drafted at −∞."""
        key = tuple(text), tuple(path)
        if key not in self.known:
            self.known[key] = self._after(text, path)
        return self.known[key]

    def _after(self, text: Sequence[int], path: Sequence[int]) -> Floats:
        features = self.features(text)
        if self.method == "medusa":
            row = self.head.medusa(features[-1:], 3, 2)[0][len(path)]
            return row[: self.size]
        tokens, previous = list(text[1:]), np.zeros((len(features), HIDDEN), np.float32)
        for drafted in [*path, None]:
            given = np.array(tokens), features, previous
            logits, hidden = self.head.eagle3(*given, norms=False) if self.method == "eagle3" else self.head.mtp("deepseek", *given)
            if drafted is not None:
                tokens.append(drafted)
            features = np.concatenate([features, np.zeros_like(features[:1])])
            previous = np.concatenate([previous, hidden[-1:]])
        row = np.full(VOCABULARY, -np.inf, np.float32)
        row[DRAFT_IDS if self.method == "eagle3" else slice(None)] = logits[-1]
        return row[: self.size]

    def draft(self, text: Sequence[int], length: int) -> list[int]:
        """The likeliest tokens after ``text``."""
        path: list[int] = []
        while len(path) < length:
            path.append(int(self.after(text, path).argmax()))
        return path

    def tree(self, text: Sequence[int], depth: int, extra: int, chain: tuple[int, ...]) -> set[tuple[int, ...]]:
        """Paths of ``chain`` and of the ``extra`` likeliest other nodes, found one after the other, the likeliest of all first."""
        paths = {chain[: length + 1] for length in range(depth)}
        frontier: list[tuple[float, tuple[int, ...]]] = []
        for length in range(depth):
            frontier += self._below(text, chain[:length], -sum(self._share(text, chain, place) for place in range(length)))
        frontier = [one for one in frontier if one[1] not in paths]
        heapify(frontier)
        for _ in range(extra):
            unlikely, path = heappop(frontier)
            paths.add(path)
            for one in self._below(text, path, unlikely) if len(path) < depth else ():
                heappush(frontier, one)
        return paths

    def _below(self, text: Sequence[int], path: tuple[int, ...], unlikely: float) -> list[tuple[float, tuple[int, ...]]]:
        """(−log confidence, path) of every node that may follow ``path``."""
        return [(unlikely - float(share), (*path, token)) for token, share in enumerate(self._shares(text, path))]

    def _shares(self, text: Sequence[int], path: Sequence[int]) -> Floats:
        row = self.after(text, path)
        shares: Floats = row - row.max() - np.log(np.exp(row - row.max()).sum())
        return shares

    def _share(self, text: Sequence[int], chain: tuple[int, ...], place: int) -> float:
        return float(self._shares(text, chain[:place])[chain[place]])


@pytest.mark.parametrize("interactive", [False, True])
@pytest.mark.parametrize("method", HEADS)
def test_a_head_drafts_what_its_paper_says(folder: Path, bundle: Bundle, method: str, interactive: bool) -> None:
    """In every round of several sequences of different lengths, after acceptance and after rejection."""
    spy, papers = Watched(head(bundle, method)), Papers(folder, bundle, method)
    generator = Generator(bundle, proposers={method: spy}, interactive=interactive)
    generator.generate(PROMPTS, [asked(method, draft_len=length) for length in (1, 2, 3)])
    assert len(spy.drafts) > 24
    assert {length for _, length, _ in spy.drafts} == {1, 2, 3}
    for text, length, draft in spy.drafts:
        assert list(draft.tokens) == papers.draft(text, length), len(text)


@pytest.mark.parametrize("interactive", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", [*HEADS, "hybrid"])
def test_the_output_is_plain_decodings(bundle: Bundle, method: str, temperature: float, interactive: bool) -> None:
    plain = Generator(bundle, batch=1)
    wanted = [plain.generate([prompt], asked("off", temperature, seed=seed))[0].token_ids for seed, prompt in enumerate(PROMPTS)]
    params = [asked(method, temperature, seed=seed, draft_len=1 + 2 * seed) for seed in range(3)]
    answers = Generator(bundle, interactive=interactive).generate(PROMPTS, params)
    assert [answer.token_ids for answer in answers] == wanted
    assert sum(answer.stats.num_draft_tokens for answer in answers) > 24


@pytest.mark.parametrize("method", HEADS)
def test_a_heads_tree_is_made_of_what_its_paper_says(folder: Path, bundle: Bundle, method: str) -> None:
    """Each node is one of the likeliest tokens after its own path, by the whole text through target and head without cache or mask; and
    of all such nodes beside the first branch those of most confidence are there."""
    spy, papers = Watched(head(bundle, method)), Papers(folder, bundle, method)
    params = [asked(method, draft_len=length, tree_budget=6, max_tokens=6) for length in (1, 2, 3)]
    Generator(bundle, proposers={method: spy}).generate(PROMPTS, params)
    assert len(spy.drafts) > 6
    for text, length, draft in spy.drafts:
        chain = tuple(papers.draft(text, length))
        paths = {tuple(draft.tokens[step] for step in draft.path(node)) for node in range(len(draft))}
        assert paths == papers.tree(text, length, 6 - length, chain), len(text)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", [*HEADS, "hybrid"])
def test_the_output_with_trees_is_plain_decodings(bundle: Bundle, method: str, temperature: float) -> None:
    """Several sequences, with chains and trees side by side."""
    plain, budgets = Generator(bundle, batch=1), (7, 0, 5)
    wanted = [plain.generate([prompt], asked("off", temperature, seed=seed))[0].token_ids for seed, prompt in enumerate(PROMPTS)]
    params = [asked(method, temperature, seed=seed, draft_len=3, tree_budget=budgets[seed]) for seed in range(3)]
    answers = Generator(bundle).generate(PROMPTS, params)
    assert [answer.token_ids for answer in answers] == wanted
    tree, chain, _ = (answer.stats for answer in answers)
    assert tree.num_draft_tokens / tree.num_spec_steps > chain.num_draft_tokens / chain.num_spec_steps


@pytest.mark.parametrize("rule", ["token", "block", "traversal"])
def test_a_draft_carries_the_laws_that_its_tokens_were_drawn_from(bundle: Bundle, rule: str) -> None:
    spy = Watched(head(bundle, "eagle3"))
    Generator(bundle, proposers={"eagle3": spy}, verification=rule).generate(PROMPTS, asked("eagle3", 1.0, draft_len=3))
    laws = [(token, law) for _, _, draft in spy.drafts for token, law in zip(draft.tokens, draft.laws or (), strict=True)]
    assert len(laws) > 24
    for token, law in laws:
        assert token in law.tokens
        assert set(law.tokens.tolist()) == set(DRAFT_IDS.tolist())


def test_a_head_that_may_draft_nothing_drafts_nothing(bundle: Bundle) -> None:
    forbidden = [[int(token)] for token in DRAFT_IDS]
    spy = Watched(head(bundle, "eagle3"))
    generator = Generator(bundle, proposers={"eagle3": spy})
    (answer,) = generator.generate(PROMPTS[:1], asked("eagle3", bad_words=forbidden))
    assert answer.token_ids == generator.generate(PROMPTS[:1], asked("off", bad_words=forbidden))[0].token_ids
    assert [draft for _, _, draft in spy.drafts if len(draft)] == []


def test_a_text_whose_beginning_is_known_is_drafted_for_all_the_same(bundle: Bundle) -> None:
    spy = Watched(head(bundle, "eagle3"))
    generator = Generator(bundle, proposers={"eagle3": spy}, remember=1000)
    prompt = list(range(30, 90))
    (first,) = generator.generate([prompt], asked("eagle3"))
    spy.drafts.clear()
    (second,) = generator.generate([prompt], asked("eagle3"))
    assert (second.token_ids, second.stats.reused_tokens) == (first.token_ids, len(prompt) - 1)
    assert [len(draft) > 0 for _, _, draft in spy.drafts] == [False, *[True] * (len(spy.drafts) - 1)], "all but the very first round"


def test_rows_are_given_back(bundle: Bundle) -> None:
    proposer = head(bundle, "mtp")
    assert isinstance(proposer, LayerHeadProposer)
    generator = Generator(bundle, proposers={"mtp": proposer})
    stream = generator.stream(PROMPTS, asked("mtp"))
    for _ in range(5):
        next(stream)
    stream.close()
    generator.generate(PROMPTS, asked("mtp"))
    proposer.model.check()
    assert proposer.model.owners == ()


def test_heads_are_measured(bundle: Bundle) -> None:
    for role in HEADS:
        measured = bundle.engine(role).probe
        assert measured is not None
        assert all(cost.seconds > 0 for cost in measured.step_costs)
        assert {cost.batch for cost in measured.step_costs} == {1, 2, 4}
    medusa = bundle.engine("medusa").probe
    assert medusa is not None
    assert medusa.batch_invariant


def test_a_head_of_another_target_is_refused(bundle: Bundle) -> None:
    target = bundle.engine("target").model_copy(update={"taps": (LAYERS,)})
    with pytest.raises(BundleError, match="the eagle3 head takes hidden state 1, which the target does not give out"):
        Joint(bundle.engine("eagle3"), target)
    assert Joint(bundle.engine("mtp"), target).row(np.zeros(VOCABULARY, np.float32)).shape == (VOCABULARY,)
