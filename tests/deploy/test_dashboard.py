"""The dashboard is what its script writes, and what Grafana can lay out."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from typing import Any

from manifests import DEPLOY, ROOT

FILE = DEPLOY / "grafana" / "specbuild.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def test_the_file_is_what_the_script_writes() -> None:
    written = subprocess.run([sys.executable, ROOT / "scripts" / "dashboard.py"], capture_output=True, check=True).stdout
    assert written == FILE.read_bytes(), "python scripts/dashboard.py > deploy/grafana/specbuild.json"


def test_panels_have_numbers_and_places_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in PANELS)
    ]
    assert all(0 <= x < 24 for cell in cells for x, _ in cell)
    assert not any(one & other for one, other in combinations(cells, 2))


def test_every_row_is_full() -> None:
    rows = [panel for panel in PANELS if panel["type"] == "row"]
    assert [row["title"] for row in rows] == ["Now", "Traffic", "Latency", "Speculation", "KV"]
    widths: dict[int, int] = {}
    for panel in PANELS:
        widths[panel["gridPos"]["y"]] = widths.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert set(widths.values()) == {24}


def test_every_query_goes_to_the_chosen_prometheus() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "model", "instance"]
    assert variables["datasource"]["query"] == "prometheus"
    panels = [panel for panel in PANELS if panel["type"] != "row"]
    targets = [target for panel in panels for target in panel["targets"]]
    assert all(one["datasource"] == SOURCE for one in (variables["model"], variables["instance"], *panels, *targets))
    for panel in panels:
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        assert panel["description"].endswith(".")
