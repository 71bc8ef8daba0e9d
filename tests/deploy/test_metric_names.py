"""Dashboard, alerts and autoscaler ask for what the server exports, by names and labels that it has, in PromQL that parses."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

import promql_parser as promql
import pytest
from manifests import DEPLOY, KUBERNETES, OVERLAYS, base, find, load, overlay

from specbuild.runtime.service_stats import ServiceStats
from specbuild.triton.latencies import Latencies
from specbuild.triton.metrics import METRICS, Recorder

ATTACHED = {"namespace", "pod", "container", "instance", "job"}
"""Labels that Prometheus adds to what it reads of a pod."""
OTHERS = {"kube_pod_container_status_restarts_total": ATTACHED}
"""Metrics that are not ours."""
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "specbuild.json").read_text(encoding="utf-8"))
(ALERTS,) = load(KUBERNETES / "monitoring" / "alerts.yaml")
RULES = [rule for group in ALERTS["spec"]["groups"] for rule in group["rules"]]
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def exported() -> dict[str, set[str]]:
    """Every metric, as a server that has drafted exports it, and its labels."""
    made: dict[str, set[str]] = {}

    class Family:
        COUNTER = GAUGE = ""

        def __init__(self, *, name: str, **_: str) -> None:
            self._labels = made.setdefault(name, set(ATTACHED))

        def Metric(self, labels: dict[str, str]) -> Self:  # noqa: N802
            self._labels.update(labels)
            return self

        def increment(self, value: float) -> None:
            pass

    stats = ServiceStats(
        queued=0,
        running=0,
        kv_used_tokens=0,
        kv_capacity_tokens=0,
        counters={},
        accepted_by_position=Counter({0: 1}),
        draft_lens=Counter({1: 1}),
        zero_acceptance={"ngram": False},
        turns=1,
    )
    Recorder(SimpleNamespace(MetricFamily=Family), "specbuild").record(stats, Latencies())
    return made


OURS = exported()


def parse(expr: str) -> tuple[set[str], set[str]]:
    """The metrics that a query reads, and the labels that it names.

    Raises:
        ValueError: it is no PromQL.
    """
    metrics, labels = set(), set()

    def visit(node: Any) -> None:
        match node:
            case promql.VectorSelector():
                metrics.add(node.name)
                labels.update(matcher.name for matcher in node.matchers.matchers)
            case promql.AggregateExpr(modifier=modifier) if modifier is not None:
                labels.update(modifier.labels)
            case promql.BinaryExpr(modifier=modifier) if modifier is not None and modifier.matching is not None:
                labels.update(modifier.matching.labels)

    promql.walk(promql.parse(expr), visit)
    return metrics, labels


def refused(expr: str, text: str = "") -> Iterator[str]:
    """What of a query, and of a text that shows its labels, the server does not export."""
    metrics, labels = parse(expr)
    known = OURS | OTHERS
    yield from metrics - known.keys()
    there = set().union(*(known.get(metric, ()) for metric in metrics))
    shown = re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", text)
    yield from (labels | set(shown)) - there


def test_the_names_are_the_table_s() -> None:
    assert {f"specbuild_{metric.name}" for metric in METRICS} < OURS.keys()
    assert OURS["specbuild_sequence_rounds"] == ATTACHED | {"model", "draft_len"}
    assert OURS["specbuild_time_to_first_token_seconds_bucket"] == ATTACHED | {"model", "le"}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["legendFormat"])
def test_a_panel_asks_for_what_is_exported(target: dict[str, Any]) -> None:
    expr = target["expr"].replace("$__rate_interval", "1m")
    assert list(refused(expr, target["legendFormat"])) == []
    assert {"model", "instance"} <= parse(expr)[1], "the choice at the top of the dashboard is heeded"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_is_exported(rule: dict[str, Any]) -> None:
    assert list(refused(rule["expr"], "".join(rule["annotations"].values()))) == []


@pytest.mark.parametrize("expr", ["rate(specbuild_requests[5m]", "specbuild_requests > > 1", "sum by model (specbuild_requests)"])
def test_what_is_no_promql_is_found(expr: str) -> None:
    with pytest.raises(ValueError):
        parse(expr)


def test_what_is_not_exported_is_found() -> None:
    wrong = 'sum by (modle) (specbuild_request{model="a"}) / on (method) group_left () specbuild_rounds'
    assert set(refused(wrong, "{{position}} {{ $labels.model }}")) == {"specbuild_request", "modle", "method", "position"}


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {metric for target in TARGETS for metric in parse(target["expr"].replace("$__rate_interval", "1m"))[0]}
    assert shown == OURS.keys()


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_the_adapter_has_what_the_autoscaler_asks_for(name: str) -> None:
    documents = base() if name == "base" else overlay(name)
    asked = {one["pods"]["metric"]["name"] for one in find(documents, "HorizontalPodAutoscaler")["spec"]["metrics"]}
    (values,) = load(DEPLOY / "prometheus-adapter.yaml")
    (rule,) = values["rules"]["custom"]
    assert rule.keys() == {"seriesQuery", "resources", "metricsQuery"}
    assert rule["resources"]["overrides"] == {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}
    (pattern,) = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    assert {metric for metric in OURS if re.fullmatch(pattern, metric)} == asked
    query = rule["metricsQuery"]
    for field, value in {"Series": "specbuild_queue_depth", "LabelMatchers": 'namespace="a",pod=~"b|c"', "GroupBy": "pod"}.items():
        query = query.replace(f"<<.{field}>>", value)
    assert parse(query) == ({"specbuild_queue_depth"}, {"namespace", "pod"})
    parse(rule["seriesQuery"])
