"""The dashboard for Grafana: every query parses, and asks for what `/metrics` serves."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import promql_parser
import pytest
import trio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.http.edge import FleetGauges
from gateway.http.metrics import Metrics
from gateway.routing import WorkerView
from gateway.routing.worker import Worker
from gateway.spending.limits import Account, LimitWindow, SpendingFigures
from gateway.telemetry import GatewayCounters
from herma.cli import main
from herma.commands.grafana import COLUMNS, dashboard, rows
from protocol.messages import CacheUse, DraftResults, Fault, Load
from tests.fakes.fleet import W1, W2, facts, hello
from tests.fakes.whole_gateway import whole_gateway

ROOT = Path(__file__).parents[2]
QUERIES = [
    (f"{panel.title}: {expr}", expr)
    for row in rows()
    for panel in row.panels
    for expr, _ in panel.queries
]
Known = dict[str, set[str]]
"""Metrics by name, each with its labels."""


def known_of(text: str) -> Known:
    known: Known = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            known[sample.name] |= sample.labels.keys()
    return known


def fleet_metrics() -> str:
    """The metrics of a fleet in which everything has happened once."""
    loaded, dead = Worker(W1, hello("w1", facts()), 0.0), Worker(W2, hello("w2", facts()), 0.0)
    drafting = DraftResults("suffix", 10, 25, (10, 8, 0), (9, 6, 0), 1.8, 1.5)
    loaded.load = msgspec.structs.replace(
        Load(1, 0, 0, 9, 9, 5, 0, 4.0, 0.0), drafting=drafting, cache=CacheUse(9, 5)
    )
    dead.fail(Fault("w2", 1, "gone", 1, is_final=True, kind="crash"), 1.0)
    views: tuple[WorkerView, ...] = (loaded.view(0), dead.view(0))
    gauges = FleetGauges(
        workers=views,
        events={"worker lost": 1},
        open_breakers={"cloud": True},
        decisions={"cached": 1},
        counters=GatewayCounters().as_dict(),
    )
    cloud = Account("provider", "cloud")
    figures = SpendingFigures(
        currency="EUR",
        spent={"cloud": 1},
        reserved={"cloud": 1},
        refusals={(cloud, "daily"): 1},
        windows=(LimitWindow(cloud, "daily", 5, 1, 1),),
    )
    return Metrics(lambda: (), lambda: gauges, lambda: figures).render().decode()


async def served() -> Known:
    """What a real gateway has answered after a request and a failed one, and the fleet's."""
    hello_there = [{"role": "user", "content": "Hi"}]
    async with whole_gateway() as whole:
        for name in ("alpha", "unknown"):
            await whole.post("/v1/chat/completions", model=name, messages=hello_there)
        text = (await whole.get("/metrics")).body.decode()
    known = known_of(text)
    for name, labels in known_of(fleet_metrics()).items():
        known[name] |= labels
    # Its labels appear with the first refusal.
    known["herma_rate_limited_total"] |= {"scope", "name", "unit"}
    return known


def parsed(query: str) -> Any:
    return promql_parser.parse(query.replace("$__rate_interval", "5m"))


def parts_of(expr: Any) -> Iterator[Any]:
    """The expression and all within it."""
    yield expr
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        inner = getattr(expr, name, None)
        if inner is not None and not isinstance(inner, str | float | int):
            yield from parts_of(inner)
    for inner in getattr(expr, "args", None) or ():
        yield from parts_of(inner)


def selectors_of(query: str) -> list[Any]:
    return [one for one in parts_of(parsed(query)) if isinstance(one, promql_parser.VectorSelector)]


def grouped_by(query: str) -> set[str]:
    """The labels of all `by` and `on`."""
    labels: set[str] = set()
    for part in parts_of(parsed(query)):
        modifier = getattr(part, "modifier", None)
        labels |= set(getattr(modifier, "labels", None) or ())
    return labels


async def test_every_query_asks_for_what_is_served() -> None:
    """Names, matched labels and grouped ones."""
    known = await served()
    for title, query in QUERIES:
        selectors = selectors_of(query)
        assert selectors, title
        labels: set[str] = set()
        for selector in selectors:
            assert selector.name in known, title
            matched = {one.name for one in selector.matchers.matchers}
            assert matched <= known[selector.name], title
            labels |= known[selector.name]
        assert grouped_by(query) <= labels, title
    model_variable = dashboard()["templating"]["list"][1]["query"]
    assert model_variable == "label_values(herma_workers, model)"
    assert "model" in known["herma_workers"]


RULES = re.compile(r"^```yaml\n(# herma-rules.yml.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_every_alert_rule_of_the_page_asks_for_what_is_served() -> None:
    """A name that is not served would never alert anybody."""
    page = await trio.Path(ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    (text,) = RULES.findall(page)
    (group,) = yaml.safe_load(text)["groups"]
    known = await served()
    known["up"] = {"job", "instance"}  # Prometheus' own
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "annotations"}
        selectors = selectors_of(rule["expr"])
        assert selectors, rule["alert"]
        for selector in selectors:
            assert selector.name in known, rule["alert"]
            matched = {one.name for one in selector.matchers.matchers}
            assert matched <= known[selector.name], rule["alert"]


def test_a_wrong_name_would_be_found() -> None:
    """The helpers see into every kind of expression that is used."""
    query = 'histogram_quantile(0.5, sum by (le) (rate(a_bucket{x="1"}[5m]))) / on (z) max(b) > 0'
    assert {one.name for one in selectors_of(query)} == {"a_bucket", "b"}
    assert grouped_by(query) >= {"le"}
    assert {one.name for one in selectors_of("delta(max by (w) (c)[5m:])")} == {"c"}
    with pytest.raises(ValueError, match="unclosed left"):
        parsed("sum(rate(a[5m])")


def test_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    """All legends use labels that their query keeps."""
    board = json.loads(json.dumps(dashboard()))
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= COLUMNS
        cells |= taken
        for target in panel.get("targets", ()):
            used = {part.split("}}")[0] for part in target["legendFormat"].split("{{")[1:]}
            assert used <= grouped_by(target["expr"]), panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grafana"]) == 0
    assert json.loads(capsys.readouterr().out) == dashboard()
