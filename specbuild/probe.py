"""What a built engine really does on this machine: are its bits invariant, what does a pass cost, how far is it from float32?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from specbuild.bundle import EngineEntry, Parity, Probe, StepCost
from specbuild.recipe import LOWER
from specbuild.runtime.engine import Engine
from specbuild.runtime.engines import load
from specbuild.runtime.model import CachedModel, Feed

SEED = 20250
PREFIX = 23
"""Odd on purpose: most alignments of a kernel's rows are met."""
TREE_PREFIXES = (1, 16, PREFIX, 127)
"""Tokens before a tree, or as many as a shorter sequence leaves room for."""
CONTEXTS = (128, 1024)
"""Or what a shorter sequence leaves room for."""
PARITY_TOKENS = 96
REPEATS = 5

Logits = NDArray[np.float32]


def probe(folder: Path, entry: EngineEntry, reference: EngineEntry | None) -> Probe:
    """Measure the engine of ``entry``; ``reference`` is the float32 build of the same graph, for parity.

    Raises:
        EnvironmentLacksError: the engine cannot be run here.
    """
    engine = load(folder, entry)
    if entry.predictions > 1:
        return _probe_parallel(engine)
    tokens = np.random.default_rng(SEED).integers(0, entry.vocab_size, PREFIX + entry.max_step).tolist()
    alone = _one_by_one(engine, tokens)
    return Probe(
        step_invariant=all(_same(alone, _in_steps(engine, tokens, size)) for size in range(2, entry.max_step + 1)),
        batch_invariant=_same(alone, _in_a_batch(engine, tokens)),
        view_invariant=entry.static_view or _same(alone, _in_a_long_view(engine, tokens)),
        step_costs=step_costs(engine),
        parity=None if reference is None else _parity(engine, load(folder, reference)),
        # The output does not depend on the bits of the others.
        tree_difference=tree_difference(engine) if entry.role == "target" else None,
    )


def _probe_parallel(engine: Engine) -> Probe:
    """Of heads without a cache: a pass is one position of each sequence, whatever came before it."""
    entry = engine.entry
    features = np.random.default_rng(SEED).standard_normal((entry.max_batch_size, 1, entry.feature_width)).astype(np.float32)
    together = engine.predict(features).copy()
    alone = [engine.predict(features[row : row + 1])[0].copy() for row in range(entry.max_batch_size)]
    in_a_row = engine.predict(features.reshape(1, entry.max_batch_size, entry.feature_width))[0]
    seconds = _seconds({batch: partial(engine.predict, features[:batch]) for batch in _batches(entry)})
    return Probe(
        step_invariant=_same([row[0] for row in alone], list(in_a_row)),
        batch_invariant=_same(alone, list(together)),
        view_invariant=True,
        step_costs=tuple(StepCost(batch=batch, step=1, context=0, seconds=taken) for batch, taken in seconds.items()),
        parity=None,
    )


def _same(one: Sequence[Logits], other: Sequence[Logits]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _one_by_one(engine: Engine, tokens: Sequence[int]) -> list[Logits]:
    """Logits of each token after the prefix, a pass a token."""
    return _in_steps(engine, tokens, 1)


def _in_steps(engine: Engine, tokens: Sequence[int], size: int) -> list[Logits]:
    model = CachedModel(engine, 1, padded=False)
    model.cache.reserve("a")
    model.prefill("a", tokens[:PREFIX])
    rows: list[Logits] = []
    for start in range(PREFIX, len(tokens), size):
        part = tuple(tokens[start : start + size])
        rows.extend(model.feed({"a": Feed(part, wanted=tuple(range(len(part))))})["a"].copy())
        model.cache.commit("a", np.arange(len(part)))
    return rows


def _in_a_batch(engine: Engine, tokens: Sequence[int]) -> list[Logits]:
    """The same sequence in the middle of a full batch of others, each of another length."""
    batch = engine.entry.max_batch_size
    model = CachedModel(engine, batch, padded=False)
    subject = batch // 2
    for row in range(batch):
        model.cache.reserve(row)
        model.prefill(row, tokens[:PREFIX] if row == subject else tokens[row : row + 3 + 5 * row % 17])
    rows: list[Logits] = []
    for token in tokens[PREFIX:]:
        # The neighbours bring two tokens: the subject's row is padded.
        feeds: dict[Hashable, Feed] = {row: Feed((token, token), wanted=(0, 1)) for row in range(batch) if row != subject}
        rows.extend(model.feed({**feeds, subject: Feed((token,), wanted=(0,))})[subject].copy())
        model.cache.commit(subject, np.arange(1))
    return rows


def _in_a_long_view(engine: Engine, tokens: Sequence[int]) -> list[Logits]:
    """The same sequence with the longest view that the engine takes."""
    model = CachedModel(engine, 1, padded=False)
    model.cache.reserve("a")
    model.prefill("a", tokens[:PREFIX])
    rows: list[Logits] = []
    for token in tokens[PREFIX:]:
        rows.extend(model.feed({"a": Feed((token,), wanted=(0,))}, view=engine.entry.capacity)["a"].copy())
        model.cache.commit("a", np.arange(1))
    return rows


def tree_difference(engine: Engine) -> float:
    """See ``Probe``. After several prefixes, behind one sibling up to as many as leave a pass room for one token more."""
    entry, random = engine.entry, np.random.default_rng(SEED)
    model = CachedModel(engine, 1, padded=False)
    model.cache.reserve("a")
    largest = 0.0
    for length in sorted({max(0, min(length, entry.max_seq_len - 2 * entry.max_step)) for length in TREE_PREFIXES}):
        model.cache.truncate("a", 0)
        model.prefill("a", random.integers(0, entry.vocab_size, length).tolist())
        for gap in sorted({1, 2, 3, entry.max_step // 2, entry.max_step - 2} & set(range(1, entry.max_step - 1))):
            root, *tokens = random.integers(0, entry.vocab_size, entry.max_step).tolist()
            path = tokens[gap:]
            behind = range(1 + gap, entry.max_step)
            chain = Feed((root, *path), wanted=tuple(range(1 + len(path))))
            tree = Feed((root, *tokens), (-1, *[0] * gap, 0, *behind[:-1]), wanted=(0, *behind))
            seen = [_and_after(model, feed, length) for feed in (chain, tree)]
            largest = max(largest, *(float(np.abs(one - other).max()) for one, other in zip(*seen, strict=True)))
    return largest


def _and_after(model: CachedModel, feed: Feed, length: int) -> list[Logits]:
    """Logits of the wanted tokens of ``feed``, which stay, and of one that follows; then ``model`` has ``length`` tokens again."""
    rows = list(model.feed({"a": feed})["a"].copy())
    model.cache.commit("a", np.array(feed.wanted))
    rows.extend(model.feed({"a": Feed((0,), wanted=(0,))})["a"].copy())
    model.cache.truncate("a", length)
    return rows


def step_costs(engine: Engine) -> tuple[StepCost, ...]:
    """Median seconds of a pass over a grid of batches, steps and contexts. Contexts are zeros: the time is the same.

    New tokens differ: equal ones would all go to the same few experts of a mixture. A longer step has those of the shorter, and more.
    """
    entry = engine.entry
    tokens = np.random.default_rng(SEED).integers(0, entry.vocab_size, (entry.max_batch_size, entry.max_step)).tolist()
    costs = []
    for batch in _batches(entry):
        model = CachedModel(engine, batch, padded=False)
        for row in range(batch):
            model.cache.reserve(row)
        for context in sorted({max(0, min(context, entry.max_seq_len - entry.max_step)) for context in CONTEXTS}):
            model.cache.make_room(0, at_least=context + entry.max_step)
            for row in range(batch):
                model.cache.commit(row, np.arange(context - model.cache.length(row)))
            runs: dict[int, Callable[[], object]] = {}
            for step in sorted({step for step in (1, 2, 4, entry.max_step) if step <= entry.max_step}):
                # Of a target's first layers the head is wanted for drafts, not where the pass that verifies lets them read.
                wanted = (step - 1,) if entry.role == LOWER else tuple(range(step))
                feeds: dict[Hashable, Feed] = {row: Feed(tuple(tokens[row][:step]), wanted=wanted) for row in range(batch)}
                runs[step] = partial(model.feed, feeds)
            taken = _seconds(runs)
            costs += [StepCost(batch=batch, step=step, context=context, seconds=taken[step]) for step in runs]
    return tuple(costs)


def _batches(entry: EngineEntry) -> list[int]:
    return sorted({batch for batch in (1, 2, 4, entry.max_batch_size) if batch <= entry.max_batch_size})


def _seconds(runs: Mapping[int, Callable[[], object]]) -> dict[int, float]:
    """Median of a few of each, after one. They take turns: what slows the machine for a while slows all of them."""
    times: dict[int, list[float]] = {key: [] for key in runs}
    for _ in range(1 + REPEATS):
        for key, run in runs.items():
            began = perf_counter()
            run()
            times[key].append(perf_counter() - began)
    return {key: median(own[1:]) for key, own in times.items()}


def _parity(engine: Engine, reference: Engine) -> Parity:
    """Both read a text that the reference writes itself at temperature 1."""
    random = np.random.default_rng(SEED)
    written, expected = [1], []
    model = CachedModel(reference, 1)
    model.cache.reserve("a")
    for _ in range(min(PARITY_TOKENS, reference.entry.max_seq_len - 1)):
        logits = model.feed({"a": Feed((written[-1],), wanted=(0,))})["a"][0].copy()
        model.cache.commit("a", np.arange(1))
        expected.append(logits)
        written.append(int(np.argmax(logits + random.gumbel(size=logits.shape))))
    seen = []
    model = CachedModel(engine, 1)
    model.cache.reserve("a")
    for token in written[:-1]:
        seen.append(model.feed({"a": Feed((token,), wanted=(0,))})["a"][0].copy())
        model.cache.commit("a", np.arange(1))
    kl = np.mean([_kl(p, q) for p, q in zip(expected, seen, strict=True)])
    largest = max(float(np.abs(p - q).max()) for p, q in zip(expected, seen, strict=True))
    return Parity(tokens=len(seen), max_abs_logit=largest, mean_kl=float(kl))


def _kl(p_logits: Logits, q_logits: Logits) -> float:
    """KL(p‖q) in nats of two softmax laws."""
    log_p, log_q = _log_softmax(p_logits), _log_softmax(q_logits)
    return float(np.sum(np.exp(log_p) * (log_p - log_q)))


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted
