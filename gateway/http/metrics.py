"""GET /metrics: the gateway's figures for Prometheus.

Owns the names and labels of metrics. Must not know how the figures arise: they are read through the
edge at each scrape. Labels hold only configured names, never text from a client. Spending is in
floating-point units of the ledger's currency, for graphs and alerts; the ledger has exact sums.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.http.client_metrics import ClientTokens
from gateway.http.edge import EdgeSettings, FleetGauges
from gateway.http.gen_ai_metrics import GenAiMetrics
from gateway.http.refused_access import RefusedAccess
from gateway.http.turn_metrics import TurnMetrics
from gateway.routing import ModelView, WorkerView
from gateway.spending import MICRO, SpendingFigures
from gateway.telemetry import COUNTED, RequestTrace
from protocol.messages import CacheUse, DraftResults, Load
from protocol.version import VERSION

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of this process, in a registry of their own."""

    def __init__(
        self,
        models: Callable[[], tuple[ModelView, ...]],
        gauges: Callable[[], FleetGauges],
        spending: Callable[[], SpendingFigures] = SpendingFigures,
        process: str | None = None,
    ) -> None:
        """`process`, if several processes share the port, becomes a label of every sample."""
        self._registry, self._shown = CollectorRegistry(), CollectorRegistry()
        self._shown.register(_Shown(self._registry, process))
        self._registry.register(_Fleet(models, gauges))
        ProcessCollector(registry=self._registry)
        self._registry.register(_Spending(spending))
        self.turns = TurnMetrics(known=lambda: _known_ends(models()))
        self._registry.register(self.turns)
        self.clients = ClientTokens()
        self._registry.register(self.clients)
        self._gen_ai = GenAiMetrics()
        self._registry.register(self._gen_ai)

    def show_rates(self, settings: EdgeSettings) -> None:
        """Add the refusals by the rate limits of `settings`."""
        self._registry.register(_Rates(settings))

    def show_refused(self, refused: RefusedAccess) -> None:
        """Add the counts of refused requests."""
        self._registry.register(_Refused(refused))

    def observe(self, trace: RequestTrace) -> None:
        """Count a request that is over."""
        if trace.usage is not None:
            self.clients.count(trace.client, trace.usage)
        self.turns.observe(trace)
        self._gen_ai.observe(trace)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._shown)


_ERRORS: Final = (400, 404, 413, 429, 499, 500, 502, 503, 504)
_ANSWERS: Final = (200, 499, 500, 502, 503)


def _known_ends(models: tuple[ModelView, ...]) -> Iterator[tuple[str, int, str]]:
    """The usual ends of requests, by model, status and server. They are shown from the start, with
    0: Prometheus counts no increase of a series that begins at 1.
    """
    for model in models:
        clouds = [f"cloud:{target.provider}" for target in model.fallback]
        yield from ((model.name, status, "none") for status in _ERRORS)
        for server in ("worker", *dict.fromkeys(clouds)):
            yield from ((model.name, status, server) for status in _ANSWERS)


class _Shown(Collector):
    """The samples of another collector as they are shown: with the label `process`, if there is
    one, and without the times since when each is counted. In the text format these are a third of
    all series and no part of the metrics that they belong to.
    """

    def __init__(self, inner: Collector, process: str | None) -> None:
        self._inner = inner
        self._labels = {} if process is None else {"process": process}

    def describe(self) -> list[Metric]:
        """Describe nothing, so that a registry does not collect in order to know the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        for metric in self._inner.collect():
            metric.samples = [
                sample._replace(labels={**sample.labels, **self._labels})
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            yield metric


_Rows = Iterable[tuple[tuple[str, ...], float]]
"""The values of the labels, and the number, of each sample."""


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    rows: _Rows,
) -> Metric:
    family = kind(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


_gauge: Final = partial(_family, GaugeMetricFamily)
_counter: Final = partial(_family, CounterMetricFamily)


class _Fleet(Collector):
    """Reads the fleet at each scrape, so that no number is kept twice."""

    def __init__(
        self, models: Callable[[], tuple[ModelView, ...]], gauges: Callable[[], FleetGauges]
    ) -> None:
        self._models = models
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield from _of_models(self._models())
        now = self._gauges()
        yield GaugeMetricFamily(
            "herma_workers_unready",
            "Workers that have registered but cannot generate.",
            now.unready_workers,
        )
        yield GaugeMetricFamily(
            "herma_sequences_running", "Sequences placed on workers.", now.running
        )
        yield GaugeMetricFamily(
            "herma_requests_in_flight", "Chat requests being answered.", now.open_turns
        )
        yield GaugeMetricFamily(
            "herma_detached_requests",
            "Requests whose client left before the first token.",
            now.detached_requests,
        )
        yield _gauge(
            "herma_build_info", "1, with the version that runs.", ("version",), [((VERSION,), 1.0)]
        )
        yield GaugeMetricFamily(
            "herma_tasks", "Tasks of the event loop; constant while idle.", now.tasks
        )
        yield from _of_routing(now)
        yield from _of_events(now)
        yield from _of_workers(now.workers)
        yield from _of_engines(now.workers)
        for name, value in now.counters.items():
            yield CounterMetricFamily(f"herma_{name}", COUNTED.get(name, name), value)

    def describe(self) -> Iterator[Metric]:
        """Describe nothing: the names depend on the fleet, which registering must not read."""
        return iter(())


def _of_routing(now: FleetGauges) -> Iterator[Metric]:
    yield _counter(
        "herma_route_decisions",
        "Sequences placed, by why the worker was chosen.",
        ("why",),
        (((why,), number) for why, number in sorted(now.decisions.items())),
    )
    yield GaugeMetricFamily(
        "herma_index_blocks", "Distinct blocks that workers hold.", now.index_blocks
    )
    yield GaugeMetricFamily("herma_index_bytes", "Memory of the prefix index.", now.index_bytes)
    text = "1 while the ledger cannot be written, and providers with limits are not asked."
    yield GaugeMetricFamily("herma_ledger_stuck", text, now.is_ledger_stuck)


def _of_models(models: tuple[ModelView, ...]) -> Iterator[Metric]:
    yield _gauge(
        "herma_workers",
        "Workers that can generate.",
        ("model", "state"),
        (((model.name, "ready"), model.ready_workers) for model in models),
    )
    yield _gauge(
        "herma_queue_length",
        "Requests that wait.",
        ("model",),
        (((model.name,), model.queued) for model in models),
    )
    yield _gauge(
        "herma_fallback",
        "1 while its providers answer for a model.",
        ("model",),
        (((model.name,), model.is_away and not model.is_providers_alone) for model in models),
    )


def _of_events(now: FleetGauges) -> Iterator[Metric]:
    """Events by kind, and which providers are asked last."""
    yield _counter(
        "herma_events",
        "What happened in the fleet (GET /events).",
        ("event",),
        (((kind,), count) for kind, count in now.events.items()),
    )
    yield _gauge(
        "herma_provider_open",
        "1 while a provider that failed is asked last, or one at its limit not at all.",
        ("provider",),
        (((name,), is_open) for name, is_open in now.open_breakers.items()),
    )


def _of_workers(workers: tuple[WorkerView, ...]) -> Iterator[Metric]:
    """The state of each worker, and the kind of its engine's fault while that lasts. The cause is
    in the log and in `herma worker status`: a label must not hold free text.
    """
    yield _gauge(
        "herma_worker_state",
        "1 for the state of a worker: ready, unproven, draining, starting, down, asleep, falling "
        "asleep or waking.",
        ("worker", "state"),
        (((worker.name, worker.state), 1) for worker in workers),
    )
    yield _gauge(
        "herma_worker_fault",
        "1 for the kind of fault of a worker whose engine is gone.",
        ("worker", "kind"),
        (
            ((worker.name, worker.fault_kind), 1)
            for worker in workers
            if worker.fault_kind is not None
        ),
    )


_ENGINE_GAUGES: Final = {
    "running": "Sequences in the engine's steps.",
    "waiting": "Sequences that wait in the engine.",
    "free_blocks": "Blocks that no sequence holds, cached ones included.",
    "num_blocks": "Blocks of the key-value cache.",
    "steps": "Steps since the engine's start.",
    "preemptions": "Sequences set back for lack of blocks since the engine's start.",
    "evicted_blocks": "Cached blocks evicted since the engine's start, of which no copy is left.",
    "recomputed_tokens": "Tokens computed again since the engine's start, because of evictions.",
    "step_seconds": "Moving average of a step's duration.",
    "prefill_tokens_per_second": "Moving average of the prefill rate.",
}


def _figure(load: Load, name: str) -> float:
    """A figure of an engine in the base unit of its metric's name."""
    match name:
        case "step_seconds":
            return load.step_ms / 1000
        case "prefill_tokens_per_second":
            return load.prefill_tokens_per_s
        case _:
            return float(getattr(load, name))


_DRAFT_GAUGES: Final = {
    "passes": "Passes of single sequences that decode since the engine's start.",
    "tokens": "Tokens that these passes made.",
    "depth": "Drafts that a pass verified lately.",
    "gain": "How many times as fast the steps with drafts were.",
}

_DRAFT_PLACES: Final = {
    "verified": "Drafts verified since the engine's start, by place.",
    "accepted": "Drafts accepted since the engine's start, by place.",
}

_MOST_PLACES: Final = 32


def _of_engines(workers: tuple[WorkerView, ...]) -> Iterator[Metric]:
    """The engines' own counters, of each one's last `Load`."""
    loads = [(worker, worker.load) for worker in workers if worker.load is not None]
    for name, text in _ENGINE_GAUGES.items():
        rows = (((worker.name,), _figure(load, name)) for worker, load in loads)
        yield _gauge(f"herma_engine_{name}", text, ("worker",), rows)
    yield from _of_drafts(
        [(worker.name, load.drafting) for worker, load in loads if load.drafting is not None]
    )
    yield from _of_host_caches(
        [(worker, load.cache) for worker, load in loads if load.cache is not None]
    )


def _of_drafts(drafting: list[tuple[str, DraftResults]]) -> Iterator[Metric]:
    """What speculation brings, of engines that draft, by the worker's name."""
    for name, text in _DRAFT_GAUGES.items():
        rows = (((worker,), getattr(figures, name)) for worker, figures in drafting)
        yield _gauge(f"herma_engine_draft_{name}", text, ("worker",), rows)
    for name, text in _DRAFT_PLACES.items():
        placed = (
            ((worker, str(place)), count)
            for worker, figures in drafting
            for place, count in enumerate(getattr(figures, name)[:_MOST_PLACES], 1)
        )
        yield _gauge(f"herma_engine_drafts_{name}", text, ("worker", "place"), placed)


_HOST_CACHE_GAUGES: Final = {
    "bytes": ("num_bytes", "Host memory of the prefix cache."),
    "held_bytes": ("held_bytes", "Of it, bytes that hold something."),
    "stored_bytes": ("stored_bytes", "Bytes stored on the host since the engine's start."),
    "loaded_bytes": ("loaded_bytes", "Bytes loaded from the host since the engine's start."),
    "evicted": ("evicted", "Blocks and states that made room for others."),
    "spoilt": ("spoilt", "Blocks and states that were not what was stored, and not used."),
    "recovered": ("recovered", "Blocks and states that the engine found at its start."),
    "load_bytes_per_second": ("load_bytes_per_s", "Moving average of the rate of loads."),
}


def _of_host_caches(caches: list[tuple[WorkerView, CacheUse]]) -> Iterator[Metric]:
    """The prefix caches with a tier in the host's memory, each with its worker."""
    for name, (figure, text) in _HOST_CACHE_GAUGES.items():
        rows = (((worker.name,), getattr(use, figure)) for worker, use in caches)
        yield _gauge(f"herma_engine_cache_host_{name}", text, ("worker",), rows)
    yield _by_tier(
        "herma_engine_cache_hit_tokens",
        "Tokens of prompts found in the prefix cache since the engine's start, by tier.",
        [(one.name, use.hit_tokens - use.loaded_tokens, use.loaded_tokens) for one, use in caches],
    )
    yield _gauge(
        "herma_engine_cache_prompt_tokens",
        "Tokens of all prompts that began since the engine's start.",
        ("worker",),
        (((worker.name,), use.prompt_tokens) for worker, use in caches),
    )
    yield _by_tier(
        "herma_engine_cache_blocks",
        "Cached blocks that the gateway knows of, by tier: on the card, or on the host alone.",
        [(one.name, one.cached_blocks - one.host_blocks, one.host_blocks) for one, _ in caches],
    )


def _by_tier(name: str, text: str, found: list[tuple[str, int, int]]) -> Metric:
    """The samples of a metric by tier. `found` has two numbers for each worker: that of its card
    and that of its host.
    """
    rows = [
        row
        for worker, on_card, on_host in found
        for row in (((worker, "card"), on_card), ((worker, "host"), on_host))
    ]
    return _gauge(name, text, ("worker", "tier"), rows)


class _Rates(Collector):
    """Reads the refusals at each scrape."""

    def __init__(self, settings: EdgeSettings) -> None:
        self._settings = settings

    def collect(self) -> Iterator[Metric]:
        limits = self._settings.rate_limits
        yield _counter(
            "herma_rate_limited",
            "Requests refused for what a key (name) or an address may use in a minute.",
            ("scope", "name", "unit"),
            () if limits is None else limits.refusals.items(),
        )


class _Refused(Collector):
    """Reads the counts of refused requests at each scrape."""

    def __init__(self, refused: RefusedAccess) -> None:
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        yield _counter(
            "herma_access_refused",
            "Requests refused for their key, their machine or their web page (401 and 403).",
            ("reason",),
            (((reason,), count) for reason, count in self._refused.counts.items()),
        )


class _Spending(Collector):
    """Reads the spending at each scrape."""

    def __init__(self, figures: Callable[[], SpendingFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        now = self._figures()
        by_provider = ("provider", "currency")
        yield _counter(
            "herma_spend",
            "Cost of cloud requests since the start; unsettled ones at their most.",
            by_provider,
            (((name, now.currency), micro / MICRO) for name, micro in now.spent.items()),
        )
        yield _gauge(
            "herma_spend_reserved",
            "What the cloud requests under way can cost at most.",
            by_provider,
            (((name, now.currency), micro / MICRO) for name, micro in now.reserved.items()),
        )
        yield _counter(
            "herma_spend_unpriced_requests",
            "Cloud requests since the start whose cost is in no sum: no price says it.",
            ("provider",),
            (((name,), count) for name, count in now.unpriced.items()),
        )
        yield _counter(
            "herma_spend_refusals",
            "Times that a limit kept a request from a provider.",
            _LIMIT,
            (((*account, period), count) for (account, period), count in now.refusals.items()),
        )
        yield _gauge(
            "herma_spend_limit",
            "The configured limits.",
            _LIMIT,
            (((*one.account, one.period), one.limit / MICRO) for one in now.windows),
        )
        yield _gauge(
            "herma_spend_in_window",
            "What counts against a limit now: spent and reserved in its day or month.",
            _LIMIT,
            (
                ((*one.account, one.period), (one.spent + one.reserved) / MICRO)
                for one in now.windows
            ),
        )

    def describe(self) -> Iterator[Metric]:
        """Describe nothing: registering must not read the spending."""
        return iter(())


_LIMIT: Final = ("scope", "name", "period")
"""The labels of a limit: an account, and the time that it counts."""
