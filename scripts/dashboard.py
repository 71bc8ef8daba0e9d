"""The Grafana dashboard of the served model's metrics.

    python scripts/dashboard.py > deploy/grafana/specbuild.json

``ROWS`` says what it shows; the rest is what Grafana wants around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

SCHEMA_VERSION = 42
"""Of Grafana 12.1 to 13, in the classic form that every version imports."""
COLUMNS = 24
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'model=~"$model",instance=~"$instance"'


@dataclass(frozen=True)
class Panel:
    """One panel: a line, or with ``now`` a number, for each series of each query."""

    title: str
    doc: str
    queries: tuple[tuple[str, str], ...]
    """PromQL and the legend of its series."""
    unit: str = "short"
    width: int = 8
    now: bool = False
    stacked: bool = False
    high: float | None = None
    """Where the axis ends."""
    alarm: float | None = None
    """From where on it is red."""


def level(name: str, by: str = "model") -> str:
    """A gauge."""
    return f"sum by ({by}) (specbuild_{name}{{{CHOSEN}}})"


def rate(name: str, by: str = "model") -> str:
    """A counter, a second."""
    return f"sum by ({by}) (rate(specbuild_{name}{{{CHOSEN}}}[$__rate_interval]))"


def share(name: str, label: str, of: str) -> str:
    """What each value of ``label`` has of ``of``."""
    return f"{rate(name, f'model, {label}')} / on (model) group_left () {rate(of)}"


def latency(name: str) -> tuple[tuple[str, str], ...]:
    """Three quantiles and the mean of a histogram."""
    quantiles = [
        (f"histogram_quantile({q}, {rate(f'{name}_bucket', 'model, le')})", f"p{q * 100:g} {{{{model}}}}") for q in (0.5, 0.95, 0.99)
    ]
    return (*quantiles, (f"{rate(f'{name}_sum')} / {rate(f'{name}_count')}", "mean {{model}}"))


def rates(**names: str) -> tuple[tuple[str, str], ...]:
    """Legend=counter."""
    return tuple((rate(name), f"{legend.replace('_', ' ')} {{{{model}}}}") for legend, name in names.items())


FIRST, BETWEEN = latency("time_to_first_token_seconds"), latency("time_between_rounds_seconds")
ACCEPTANCE = f"{rate('spec_decode_num_accepted_tokens')} / {rate('spec_decode_num_draft_tokens')}"
LENGTH = f"{rate('emitted_tokens')} / {rate('sequence_rounds')}"
ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Tokens", "Tokens given out, a second.", rates(out="emitted_tokens"), "short", 4, now=True),
        Panel("First token, p95", "Nineteen requests in twenty have their first token by then.", FIRST[1:2], "s", 4, now=True),
        Panel(
            "Mean acceptance length",
            "Tokens that a round of a sequence gives: 1 is decoding without drafts.",
            ((LENGTH, "{{model}}"),),
            "short",
            4,
            now=True,
        ),
        Panel("Acceptance rate", "Draft tokens accepted, of those drafted.", ((ACCEPTANCE, "{{model}}"),), "percentunit", 4, now=True),
        Panel("Waiting", "Requests that wait for a slot.", ((level("queue_depth"), "{{model}}"),), "short", 4, now=True, alarm=8),
        Panel(
            "Zero acceptance",
            "Servers where no draft of a method is accepted any more: draft and target may not fit.",
            ((level("spec_decode_zero_acceptance", "model, method"), "{{method}} {{model}}"),),
            "short",
            4,
            now=True,
            alarm=1,
        ),
    ),
    "Traffic": (
        Panel(
            "Requests",
            "A second. Taken, and how they end; busy (the queue was full) and rejected (impossible) were never taken.",
            rates(
                taken="requests",
                completed="requests_completed",
                cancelled="requests_cancelled",
                timed_out="requests_timed_out",
                failed="requests_failed",
                busy="requests_busy",
                rejected="requests_rejected",
            ),
            "reqps",
        ),
        Panel("Tokens", "A second.", rates(prompt="prompt_tokens", given_out="emitted_tokens")),
        Panel(
            "Slots and queue",
            "Requests of each server that have a slot, and that wait for one.",
            ((level("running_requests", "instance"), "running {{instance}}"), (level("queue_depth", "instance"), "waiting {{instance}}")),
        ),
    ),
    "Latency": (
        Panel("Time to first token", "From a request's arrival to its first token, as the server sees it.", FIRST, "s"),
        Panel("Time between rounds", "Between the responses of one request; a round gives one token or more.", BETWEEN, "s"),
        Panel(
            "Where the time goes",
            "Seconds of a request, mean: waiting for a slot, reading the prompt, decoding.",
            (
                (f"{rate('queue_seconds')} / {rate('requests')}", "queue {{model}}"),
                (f"{rate('prefill_seconds')} / {rate('requests_completed')}", "prefill {{model}}"),
                (f"{rate('decode_seconds')} / {rate('requests_completed')}", "decode {{model}}"),
            ),
            "s",
            stacked=True,
        ),
    ),
    "Speculation": (
        Panel("Mean acceptance length", "Tokens that a round of a sequence gives: 1 is decoding without drafts.", ((LENGTH, "{{model}}"),)),
        Panel("Acceptance rate", "Draft tokens accepted, of those drafted.", ((ACCEPTANCE, "{{model}}"),), "percentunit", high=1),
        Panel(
            "Acceptance by position",
            "Drafts whose token at the position was accepted, of all drafts; the first position is 0.",
            ((share("spec_decode_num_accepted_tokens_per_pos", "position", "spec_decode_num_drafts"), "{{position}} {{model}}"),),
            "percentunit",
            high=1,
        ),
        Panel(
            "Draft length",
            "Rounds of sequences by the draft length that the server chose for them; at 0 it found that a draft does not pay.",
            ((share("sequence_rounds", "draft_len", "sequence_rounds"), "{{draft_len}} {{model}}"),),
            "percentunit",
            stacked=True,
            high=1,
        ),
        Panel(
            "Drafts",
            "A second.",
            rates(
                drafts="spec_decode_num_drafts", tokens_drafted="spec_decode_num_draft_tokens", accepted="spec_decode_num_accepted_tokens"
            ),
        ),
        Panel(
            "Rounds",
            "Rounds a second, and the sequences in one: how well requests are batched. Without turns the model hangs.",
            (
                (rate("rounds"), "rounds {{model}}"),
                (f"{rate('sequence_rounds')} / {rate('rounds')}", "sequences in one {{model}}"),
                (rate("turns"), "turns {{model}}"),
            ),
        ),
    ),
    "KV": (
        Panel(
            "KV entries",
            "In use, and all that there are.",
            (
                (level("kv_used_tokens", "instance"), "used {{instance}}"),
                (level("kv_capacity_tokens", "instance"), "capacity {{instance}}"),
            ),
        ),
        Panel(
            "KV in use",
            "Of the capacity.",
            ((f"{level('kv_used_tokens', 'instance')} / {level('kv_capacity_tokens', 'instance')}", "{{instance}}"),),
            "percentunit",
            high=1,
            alarm=0.9,
        ),
        Panel(
            "Prefix reuse",
            "Tokens of prompts whose KV was there already, of all.",
            ((f"{rate('reused_tokens')} / {rate('prompt_tokens')}", "{{model}}"),),
            "percentunit",
            high=1,
        ),
    ),
}


def layout(rows: dict[str, tuple[Panel, ...]]) -> Iterator[dict[str, Any]]:
    """Panels from left to right and from top to bottom, each row under its title."""
    ids, top = count(1), 0
    for title, panels in rows.items():
        yield {"id": next(ids), "type": "row", "title": title, "collapsed": False, "gridPos": place(top, 0, COLUMNS, 1), "panels": []}
        top, left, height = top + 1, 0, HEIGHT // 2 if panels[0].now else HEIGHT
        for panel in panels:
            if left + panel.width > COLUMNS:
                top, left = top + height, 0
            yield {"id": next(ids), "gridPos": place(top, left, panel.width, height)} | draw(panel)
            left += panel.width
        top += height


def place(top: int, left: int, width: int, height: int) -> dict[str, int]:
    """``gridPos``."""
    return {"h": height, "w": width, "x": left, "y": top}


def draw(panel: Panel) -> dict[str, Any]:
    """A panel without its place."""
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.high is not None:
        defaults["max"] = panel.high
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.now:
        options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "graphMode": "area"}
    else:
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        defaults["custom"] = {
            "fillOpacity": 40 if panel.stacked else 0,
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
        }
        defaults["custom"]["thresholdsStyle"] = {"mode": "line" if panel.alarm is not None else "off"}
    return {
        "type": "stat" if panel.now else "timeseries",
        "title": panel.title,
        "description": panel.doc,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expr, "legendFormat": legend, "range": True}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }


def variable(name: str, query: str) -> dict[str, Any]:
    """A choice among the values that a label has."""
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def dashboard() -> dict[str, Any]:
    """The whole, as Grafana imports it."""
    return {
        "uid": "specbuild",
        "title": "specbuild",
        "description": "Speculative decoding on Triton: traffic, latency, what speculation brings, KV.",
        "tags": ["specbuild", "triton"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus", "refresh": 1},
                variable("model", "label_values(specbuild_queue_depth, model)"),
                variable("instance", 'label_values(specbuild_queue_depth{model=~"$model"}, instance)'),
            ]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": list(layout(ROWS)),
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2, ensure_ascii=False))
