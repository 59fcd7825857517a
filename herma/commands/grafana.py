"""`herma grafana`: a dashboard for Grafana over a Prometheus that scrapes the gateway.

Owns the form of a dashboard and the places of its panels; `grafana.toml` beside it has the panels
and their queries.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

SCHEMA_VERSION: Final = 39
COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`queries` are PromQL with the legend of each. `unit` is one of Grafana's."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    is_stacked: bool = False


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Panels under a title."""

    title: str
    panels: tuple[Panel, ...]


def run(arguments: argparse.Namespace) -> int:  # noqa: ARG001
    """Print the dashboard as JSON for Grafana's import."""
    print(json.dumps(dashboard(), indent=1))
    return 0


def rows() -> list[Row]:
    """The rows of the dashboard, from above."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["rows"], list[Row])


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's import format."""
    return {
        "uid": "herma",
        "title": "Herma",
        "tags": ["herma", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_placed(rows())),
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "model",
            "label": "Model",
            "type": "query",
            "datasource": _SOURCE,
            "query": "label_values(herma_workers, model)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
        },
    ]


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The panels from left to right below their row's title."""
    number, y = 0, 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "panels": []}
        y += 1
        for line in _lines(row.panels):
            x, height = 0, 4 if line[0].kind == "stat" else 8
            for panel in line:
                number += 1
                place = {"x": x, "y": y, "w": panel.width, "h": height}
                yield {"id": number, "gridPos": place, **_panel(panel)}
                x += panel.width
            y += height


def _lines(panels: Sequence[Panel]) -> Iterator[list[Panel]]:
    line: list[Panel] = []
    for panel in panels:
        if sum(one.width for one in line) + panel.width > COLUMNS:
            yield line
            line = []
        line.append(panel)
    yield line


def _panel(panel: Panel) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.is_stacked else "none"}
    custom = {"stacking": stacking, "fillOpacity": 20 if panel.is_stacked else 0}
    defaults = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        defaults["custom"] = custom
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expr, "legendFormat": name}
            for at, (expr, name) in enumerate(panel.queries)
        ],
    }
