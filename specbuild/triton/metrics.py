"""Figures on Triton's metrics port: the one table of them, and what keeps them up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specbuild.runtime.service_stats import ServiceStats
from specbuild.runtime.zero_acceptance import SPELL

from .latencies import Histogram, Latencies

PREFIX = "specbuild_"
TURNS = "turns"
Labels = dict[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True)
class Metric:
    """A family of Prometheus samples. Its labels take few values: none comes from a request."""

    name: str
    kind: Literal["COUNTER", "GAUGE"]
    doc: str
    samples: Callable[[ServiceStats], Iterable[Sample]]


def _gauge(name: str, doc: str, value: Callable[[ServiceStats], float]) -> Metric:
    return Metric(name, "GAUGE", doc, lambda stats: [({}, value(stats))])


def _sum(name: str, doc: str, key: str | None = None) -> Metric:
    return Metric(name, "COUNTER", doc, lambda stats: [({}, stats.counters.get(key or name, 0.0))])


def _by_index(name: str, label: str, doc: str, values: Callable[[ServiceStats], Mapping[int, int]]) -> Metric:
    return Metric(name, "COUNTER", doc, lambda stats: [({label: str(index)}, value) for index, value in sorted(values(stats).items())])


METRICS = (
    _gauge("queue_depth", "Requests that wait for a slot.", lambda stats: stats.queued),
    _gauge("running_requests", "Requests that have a slot.", lambda stats: stats.running),
    _gauge("kv_used_tokens", "KV entries in use.", lambda stats: stats.kv_used_tokens),
    _gauge("kv_capacity_tokens", "KV entries that there are.", lambda stats: stats.kv_capacity_tokens),
    _sum("requests", "Requests taken."),
    _sum("requests_completed", "Requests answered to the end.", "completed"),
    _sum("requests_cancelled", "Requests whose client left or asked for the end.", "cancelled"),
    _sum("requests_timed_out", "Requests past their deadline.", "timed_out"),
    _sum("requests_rejected", "Requests refused because they ask for the impossible.", "rejected"),
    _sum("requests_busy", "Requests turned away because the queue was full, or the server was closing.", "busy"),
    _sum("requests_failed", "Requests that an error of the engine ended.", "failed"),
    _sum("prompt_tokens", "Tokens of prompts."),
    _sum("reused_tokens", "Of them, those whose KV was there already."),
    _sum("emitted_tokens", "Tokens given out."),
    _sum("spec_decode_num_drafts", "Drafts verified.", "drafts"),
    _sum("spec_decode_num_draft_tokens", "Tokens drafted.", "draft_tokens"),
    _sum("spec_decode_num_accepted_tokens", "Draft tokens accepted and given out.", "accepted_tokens"),
    _by_index(
        "spec_decode_num_accepted_tokens_per_pos",
        "position",
        "Accepted, by position in the draft; the first is 0.",
        lambda stats: stats.accepted_by_position,
    ),
    Metric(
        "spec_decode_zero_acceptance",
        "GAUGE",
        f"By method: 1 while none of its last {SPELL} drafts had a token that was accepted, else 0.",
        lambda stats: [({"method": method}, value) for method, value in stats.zero_acceptance.items()],
    ),
    _by_index(
        "sequence_rounds", "draft_len", "Rounds of sequences, by how many tokens were drafted for them.", lambda stats: stats.draft_lens
    ),
    _sum("rounds", "Rounds."),
    Metric(
        TURNS,
        "COUNTER",
        "Turns of the model's thread. They grow with and without work: one that hangs stands still.",
        lambda stats: [({}, stats.turns)],
    ),
    _sum("queue_seconds", "Time that requests waited for a slot."),
    _sum("prefill_seconds", "Time in prefill, by request."),
    _sum("decode_seconds", "Time in decoding, by request."),
)
HISTOGRAMS: tuple[tuple[str, str, Callable[[Latencies], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From a request's arrival to its first token", lambda latencies: latencies.first),
    ("time_between_rounds_seconds", "Between the responses of one request", lambda latencies: latencies.between),
)


class Recorder:
    """Hands to Triton what changed since it was last asked to.

    A histogram is counters under the names that Prometheus gives one (``_bucket{le=}``, ``_sum``, ``_count``): Triton's own takes one
    observation a call, each a way to another process; these move in bulk.
    """

    def __init__(self, pb: Any, model: str) -> None:
        self._pb = pb
        self._labels = {"model": model}
        self._families: dict[str, Any] = {}
        self._children: dict[tuple[str, str], Any] = {}
        self._seen: dict[tuple[str, str], float] = {}

    def record(self, stats: ServiceStats, latencies: Latencies) -> None:
        """Bring every metric to where ``stats`` and ``latencies`` are; those of a lossy rule say so in a label."""
        if stats.lossy is not None:
            self._labels["lossy"] = stats.lossy
        for metric in METRICS:
            for labels, value in metric.samples(stats):
                self._set(metric.name, metric.kind, metric.doc, labels, value)
        for name, doc, histogram_of in HISTOGRAMS:
            histogram = histogram_of(latencies)
            for index, bound in enumerate((*histogram.bounds, float("inf"))):
                label = "+Inf" if bound == float("inf") else f"{bound:g}"
                self._set(f"{name}_bucket", "COUNTER", f"{doc}: at most le seconds.", {"le": label}, histogram.at_most(index))
            self._set(f"{name}_sum", "COUNTER", f"{doc}: seconds in all.", {}, histogram.total)
            self._set(f"{name}_count", "COUNTER", f"{doc}: how many.", {}, histogram.count)

    def _set(self, name: str, kind: str, doc: str, labels: Labels, value: float) -> None:
        key = (name, ",".join(labels.values()))
        before = self._seen.get(key)
        if before == value:
            return
        if key not in self._children:
            self._children[key] = self._family(name, kind, doc).Metric(labels=self._labels | labels)
        # A gauge too is moved, not set: instances of one model share their samples, which then are of all of them together.
        self._children[key].increment(value - (before or 0))
        self._seen[key] = value

    def _family(self, name: str, kind: str, doc: str) -> Any:
        if name not in self._families:
            constant = getattr(self._pb.MetricFamily, kind)
            self._families[name] = self._pb.MetricFamily(name=PREFIX + name, description=doc, kind=constant)
        return self._families[name]
