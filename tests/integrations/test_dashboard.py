"""The dashboard for Grafana: its shape, and its metrics against a real scrape."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from logclient.integrations import prometheus
from tests.support import ROOT

pytestmark = pytest.mark.tree

DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
CHARTS = [panel for panel in PANELS if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
EXPRESSIONS = [target["expr"] for panel in CHARTS for target in panel["targets"]]


def _names(text: str) -> set[str]:
    return set(re.findall(r"\blogclient_\w+", text))


def test_it_shows_exactly_the_exported_metrics() -> None:
    client_of = pytest.importorskip("prometheus_client")
    registry = client_of.CollectorRegistry()
    prometheus.register(registry)
    scraped = client_of.generate_latest(registry).decode()
    exported = set(re.findall(r"^# TYPE (logclient_\w+) (?:counter|gauge)$", scraped, re.MULTILINE))
    assert len(exported) == len(prometheus.COUNTERS) + len(prometheus.GAUGES)
    assert _names(" ".join(EXPRESSIONS)) == exported
    queries = " ".join(variable.get("definition", "") for variable in VARIABLES.values())
    assert _names(queries) <= exported


def test_counters_are_shown_as_rates_only() -> None:
    for expression in EXPRESSIONS:
        for name in _names(expression):
            rate = rf"(rate|increase)\({name}\{{[^}}]*\}}\[\$__(rate_interval|range)\]\)"
            assert bool(re.search(rate, expression)) is name.endswith("_total"), expression
        assert expression.count("(") == expression.count(")")


def test_every_query_follows_the_variables() -> None:
    assert list(VARIABLES) == ["datasource", "job", "url"]
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert VARIABLES["job"]["datasource"] == VARIABLES["url"]["datasource"] == source
    for panel in CHARTS:
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])
    for expression in EXPRESSIONS:
        assert expression.count('{job=~"$job", url=~"$url"}') == len(re.findall(r"logclient_", expression))


def test_it_has_the_shape_that_grafana_imports() -> None:
    assert DASHBOARD["schemaVersion"] >= 36  # data sources by uid
    assert DASHBOARD["title"] == DASHBOARD["uid"] == "logclient"
    assert "id" not in DASHBOARD  # of the database it came from
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in CHARTS:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"] and panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        ids = [target["refId"] for target in panel["targets"]]
        assert ids and len(set(ids)) == len(ids)
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends)


def test_panels_fill_the_grid_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert taken == {(x, y) for x in range(24) for y in range(1 + max(y for _, y in taken))}
