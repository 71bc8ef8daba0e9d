"""Every figure of the service is on the metrics port, under names that other tools read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from fake_triton import FakeTriton, stats

from specbuild.triton.latencies import BOUNDS, Histogram, Latencies
from specbuild.triton.metrics import METRICS, Recorder


@pytest.fixture
def pb() -> FakeTriton:
    return FakeTriton()


def value(pb: FakeTriton, name: str, **labels: str) -> float:
    family = pb.MetricFamily.made[f"specbuild_{name}"]  # type: ignore[attr-defined]
    return float(family.values[tuple(sorted((labels | {"model": "specbuild"}).items()))])


def test_counters_move_by_what_came_and_gauges_to_where_it_is(pb: FakeTriton) -> None:
    recorder, latencies = Recorder(pb, "specbuild"), Latencies()
    before = stats(drafts=3, draft_tokens=12, accepted_tokens=8, emitted_tokens=11)
    recorder.record(before, latencies)
    recorder.record(before, latencies)
    assert value(pb, "spec_decode_num_drafts") == 3
    assert value(pb, "spec_decode_num_accepted_tokens_per_pos", position="1") == 3
    assert value(pb, "sequence_rounds", draft_len="4") == 6
    assert value(pb, "queue_depth") == 1
    assert value(pb, "spec_decode_zero_acceptance", method="ngram") == 0
    after = replace(
        before,
        queued=0,
        zero_acceptance={"ngram": True},
        counters={**before.counters, "drafts": 5},
        accepted_by_position=Counter({0: 6, 1: 3, 2: 1}),
    )
    recorder.record(after, latencies)
    assert value(pb, "spec_decode_num_drafts") == 5
    assert value(pb, "spec_decode_num_accepted_tokens_per_pos", position="2") == 1
    assert value(pb, "queue_depth") == 0
    assert value(pb, "spec_decode_zero_acceptance", method="ngram") == 1
    recorder.record(replace(after, zero_acceptance={"ngram": False}), latencies)
    assert value(pb, "spec_decode_zero_acceptance", method="ngram") == 0


def test_figures_of_a_lossy_rule_say_so(pb: FakeTriton) -> None:
    recorder = Recorder(pb, "specbuild")
    recorder.record(replace(stats(drafts=3), lossy="typical"), Latencies())
    assert value(pb, "spec_decode_num_drafts", lossy="typical") == 3
    assert value(pb, "spec_decode_num_accepted_tokens_per_pos", position="1", lossy="typical") == 3


def test_a_histogram_is_what_prometheus_expects(pb: FakeTriton) -> None:
    recorder, latencies = Recorder(pb, "specbuild"), Latencies()
    for seconds in (0.0005, 0.002, 0.0021, 99.0):
        latencies.first.observe(seconds)
    recorder.record(stats(), latencies)
    name = "time_to_first_token_seconds"
    buckets = [value(pb, f"{name}_bucket", le=f"{bound:g}") for bound in BOUNDS]
    assert buckets[:3] == [1, 2, 3]
    assert buckets == sorted(buckets)
    assert value(pb, f"{name}_bucket", le="+Inf") == value(pb, f"{name}_count") == 4
    assert value(pb, f"{name}_sum") == pytest.approx(99.0046)


def test_an_empty_histogram_has_no_observation() -> None:
    histogram = Histogram((1.0, 2.0))
    assert (histogram.count, histogram.at_most(1), histogram.total) == (0, 0, 0.0)


def test_every_counter_of_the_service_is_shown(pb: FakeTriton) -> None:
    names = {"requests", "completed", "cancelled", "timed_out", "rejected", "busy", "failed", "rounds"}
    names |= {"prompt_tokens", "reused_tokens", "emitted_tokens", "drafts", "draft_tokens", "accepted_tokens"}
    names |= {"queue_seconds", "prefill_seconds", "decode_seconds"}
    marked = stats(**{name: float(index + 1) for index, name in enumerate(sorted(names))})
    shown = {sample for metric in METRICS if metric.kind == "COUNTER" for _, sample in metric.samples(marked)}
    assert set(marked.counters.values()) <= shown


def test_instances_of_one_model_add_up(pb: FakeTriton) -> None:
    first, second = Recorder(pb, "specbuild"), Recorder(pb, "specbuild")
    for recorder in (first, second):
        recorder.record(stats(requests=2), Latencies())
    assert (value(pb, "requests"), value(pb, "queue_depth"), value(pb, "kv_capacity_tokens")) == (4, 2, 800)
    first.record(replace(stats(requests=3), queued=0), Latencies())
    assert (value(pb, "requests"), value(pb, "queue_depth")) == (5, 1)
