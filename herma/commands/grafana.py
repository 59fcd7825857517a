"""`herma grafana`: a dashboard for Grafana over a Prometheus that scrapes the gateway.

Owns the panels and their queries. Sums are over all gateway processes; figures of a worker, which
every process reports, are counted once.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

SCHEMA_VERSION: Final = 39
COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_MODEL: Final = 'model=~"$model"'
_RATE: Final = "[$__rate_interval]"


class Panel(NamedTuple):
    """`queries` are PromQL with the legend of each. `unit` is one of Grafana's."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    is_stacked: bool = False


def _graph(title: str, query: str, legend: str, unit: str = "short") -> Panel:
    return Panel(title, ((query, legend),), unit)


def _stack(title: str, query: str, legend: str, unit: str = "short") -> Panel:
    return Panel(title, ((query, legend),), unit, is_stacked=True)


def _stat(title: str, query: str, unit: str = "short") -> Panel:
    return Panel(title, ((query, ""),), unit, width=4, kind="stat")


def _states(title: str, query: str, legend: str) -> Panel:
    return Panel(title, ((query, legend),), kind="state-timeline")


def run(arguments: argparse.Namespace) -> int:  # noqa: ARG001
    """Print the dashboard as JSON for Grafana's import."""
    print(json.dumps(dashboard(), indent=1))
    return 0


def _quantiles(metric: str, by: str, only: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"histogram_quantile({share}, {_per_second(f'{metric}_bucket', f'le, {by}', only)})",
            f"{{{{{by}}}}} {words}",
        )
        for share, words in ((0.5, "median"), (0.95, "95 %"))
    )


def _per_second(metric: str, by: str, only: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{only}}}{_RATE}))"


def _engine(figure: str) -> str:
    """A query that counts a worker's figure once, because every gateway process reports it."""
    return f"max by (worker) (herma_engine_{figure})"


def _share(part: str, whole: str) -> str:
    """A query for a share. It is 0 where there is nothing, neither a gap nor "no data"."""
    of_all = f"clamp_min(sum(rate({whole}{_RATE})), 1e-9)"
    return f"(sum(rate({part}{_RATE})) or vector(0)) / {of_all}"


def _grows(figure: str, by: str = "worker") -> str:
    """The growth of an engine's counter per second; each worker counts once."""
    return f"rate(max by ({by}) (herma_engine_{figure})[5m:])"


_FOUND: Final = f"sum by (tier) ({_grows('cache_hit_tokens', 'worker, tier')})"
_PROMPTS: Final = f"clamp_min(sum({_grows('cache_prompt_tokens')}), 1e-9)"
_LIMITS: Final = "max by (scope, name, period)"
_ALL_REQUESTS: Final = f"herma_requests_total{{{_MODEL}}}"
_GEN_AI_MODEL: Final = 'gen_ai_request_model=~"$model"'

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Now": (
        _stat("In flight", "sum(herma_requests_in_flight)"),
        _stat("Waiting", f"sum(herma_queue_length{{{_MODEL}}})"),
        _stat("Workers ready", 'count(max by (worker) (herma_worker_state{state="ready"}))'),
        _stat("Models at providers", f"sum(max by (model) (herma_fallback{{{_MODEL}}}))"),
        _stat(
            "Failed",
            _share(f'herma_requests_total{{{_MODEL}, status=~"5.."}}', _ALL_REQUESTS),
            "percentunit",
        ),
        _stat(
            "From the cache",
            _share(
                f'herma_tokens_total{{{_MODEL}, kind="cached"}}',
                f'herma_tokens_total{{{_MODEL}, kind="prompt"}}',
            ),
            "percentunit",
        ),
    ),
    "Traffic": (
        _stack(
            "Requests by model",
            _per_second("herma_requests_total", "model", _MODEL),
            "{{model}}",
            "reqps",
        ),
        _stack(
            "Requests by end",
            _per_second("herma_requests_total", "status", _MODEL),
            "{{status}}",
            "reqps",
        ),
        _graph("Tokens", _per_second("herma_tokens_total", "kind", _MODEL), "{{kind}}"),
    ),
    "Latency": (
        Panel("First token", _quantiles("herma_first_token_seconds", "model", _MODEL), "s"),
        Panel(
            "Per output token",
            _quantiles(
                "gen_ai_server_time_per_output_token_seconds",
                "gen_ai_request_model",
                _GEN_AI_MODEL,
            ),
            "s",
        ),
        Panel("Whole request", _quantiles("herma_request_seconds", "model", _MODEL), "s"),
    ),
    "Workers": (
        _states("State", "max by (worker, state) (herma_worker_state)", "{{worker}} {{state}}"),
        Panel(
            "Sequences",
            ((_engine("running"), "{{worker}}"), (_engine("waiting"), "{{worker}} waiting")),
        ),
        _graph(
            "Memory held",
            f"1 - {_engine('free_blocks')} / {_engine('num_blocks')}",
            "{{worker}}",
            "percentunit",
        ),
        _graph(
            "Computed again after evictions, tokens/s",
            f"rate({_engine('recomputed_tokens')}[5m:])",
            "{{worker}}",
        ),
        _graph("Step", _engine("step_seconds"), "{{worker}}", "s"),
        _graph("Prefill", _engine("prefill_tokens_per_second"), "{{worker}}"),
        Panel(
            "Set back, faults",
            (
                (f"delta({_engine('preemptions')}[5m:])", "{{worker}} set back"),
                ("max by (worker, kind) (herma_worker_fault)", "{{worker}} {{kind}}"),
            ),
        ),
        _graph("Drafts: times as fast", _engine("draft_gain"), "{{worker}}"),
        _stack(
            "Why workers were chosen",
            _per_second("herma_route_decisions_total", "why"),
            "{{why}}",
            "ops",
        ),
        _graph(
            "Cached share by client",
            " / ".join(
                _per_second("herma_client_tokens_total", "client", f'kind="{kind}"')
                for kind in ("cached", "prompt")
            ),
            "{{client}}",
            "percentunit",
        ),
    ),
    "Prefix caches with a host tier": (
        _stack(
            "Share of prompts found, by tier",
            f"{_FOUND} / on () group_left () {_PROMPTS}",
            "{{tier}}",
            "percentunit",
        ),
        Panel(
            "Stored on hosts and loaded, bytes/s",
            (
                (_grows("cache_host_stored_bytes"), "{{worker}} stored"),
                (_grows("cache_host_loaded_bytes"), "{{worker}} loaded"),
            ),
            "Bps",
        ),
        _graph(
            "Rate of the latest loads",
            _engine("cache_host_load_bytes_per_second"),
            "{{worker}}",
            "Bps",
        ),
        _graph(
            "Host memory that holds something",
            f"{_engine('cache_host_held_bytes')} / {_engine('cache_host_bytes')}",
            "{{worker}}",
            "percentunit",
        ),
        _stack(
            "Blocks known, by tier",
            "sum by (tier) (max by (worker, tier) (herma_engine_cache_blocks))",
            "{{tier}}",
        ),
        Panel(
            "Left the host, spoilt",
            (
                (_grows("cache_host_evicted"), "{{worker}} evicted/s"),
                (f"delta({_engine('cache_host_spoilt')}[5m:])", "{{worker}} spoilt"),
            ),
        ),
    ),
    "Cloud and money": (
        _stack(
            "Requests by server",
            _per_second("herma_requests_total", "served_by", _MODEL),
            "{{served_by}}",
            "reqps",
        ),
        _graph(
            "Spent in an hour",
            "sum by (provider, currency) (increase(herma_spend_total[1h]))",
            "{{provider}} {{currency}}",
        ),
        _graph(
            "Used of limits",
            f"{_LIMITS} (herma_spend_in_window) / {_LIMITS} (herma_spend_limit)",
            "{{scope}} {{name}} {{period}}",
            "percentunit",
        ),
        _states("Providers asked last", "max by (provider) (herma_provider_open)", "{{provider}}"),
        Panel(
            "Refused for limits",
            (
                (
                    "sum by (scope, name, period) (increase(herma_spend_refusals_total[1h]))",
                    "{{scope}} {{name}} {{period}}",
                ),
                (
                    "sum by (scope, name, unit) (increase(herma_rate_limited_total[1h]))",
                    "{{scope}} {{name}} {{unit}}",
                ),
            ),
        ),
        _stack("Events", "sum by (event) (increase(herma_events_total[5m])) > 0", "{{event}}"),
    ),
    "The gateway itself": (
        _graph("Tasks", "sum(herma_tasks)", "tasks"),
        _graph("Prefix index", "sum(herma_index_bytes)", "bytes", "bytes"),
        _graph("Spans lost", "sum(increase(herma_spans_lost_total[1h]))", "in an hour"),
    ),
}


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
        "panels": list(_placed(ROWS)),
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


def _placed(rows: dict[str, tuple[Panel, ...]]) -> Iterator[dict[str, Any]]:
    """The panels from left to right below their row's title."""
    number, y = 0, 0
    for title, panels in rows.items():
        number += 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        y += 1
        for line in _lines(panels):
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
