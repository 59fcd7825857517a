"""GET /metrics: the gateway's figures for Prometheus.

Owns the names and labels of metrics. Must not know how the figures arise: they are read through the
edge at each scrape. Labels hold only configured names, never text from a client. Spending is in
floating-point units of the ledger's currency, for graphs and alerts; the ledger has exact sums.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.http.client_metrics import ClientTokens
from gateway.http.edge import EdgeSettings, FleetGauges
from gateway.http.gen_ai_metrics import GenAiMetrics
from gateway.http.turn_metrics import TurnMetrics
from gateway.routing import ModelView, WorkerView
from gateway.spending import MICRO, LimitWindow, SpendingFigures
from gateway.telemetry import RequestTrace
from protocol.messages import Load

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
        """Nothing: a registry need not collect in order to know the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        for metric in self._inner.collect():
            metric.samples = [
                sample._replace(labels={**sample.labels, **self._labels})
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            yield metric


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
        yield GaugeMetricFamily(
            "herma_tasks", "Tasks of the event loop; constant while idle.", now.tasks
        )
        yield from _of_routing(now)
        yield from _of_events(now)
        yield from _of_workers(now.workers)
        yield from _of_engines(now.workers)
        for name, value in now.counters.items():
            yield CounterMetricFamily(
                f"herma_{name}", f"{name.replace('_', ' ')} since the start.", value
            )

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names depend on the fleet, and registering must not read it."""
        return iter(())


def _of_routing(now: FleetGauges) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "herma_route_decisions", "Sequences placed, by why the worker was chosen.", labels=("why",)
    )
    for why, number in sorted(now.decisions.items()):
        decisions.add_metric((why,), number)
    yield decisions
    yield GaugeMetricFamily(
        "herma_index_blocks", "Distinct blocks that workers hold.", now.index_blocks
    )
    yield GaugeMetricFamily("herma_index_bytes", "Memory of the prefix index.", now.index_bytes)


def _of_models(models: tuple[ModelView, ...]) -> Iterator[Metric]:
    workers = GaugeMetricFamily(
        "herma_workers", "Workers that can generate.", labels=("model", "state")
    )
    queued = GaugeMetricFamily("herma_queue_length", "Requests that wait.", labels=("model",))
    fallback = GaugeMetricFamily(
        "herma_fallback", "1 while its providers answer for a model.", labels=("model",)
    )
    for model in models:
        workers.add_metric((model.name, "ready"), model.ready_workers)
        queued.add_metric((model.name,), model.queued)
        fallback.add_metric((model.name,), model.is_away)
    yield from (workers, queued, fallback)


def _of_events(now: FleetGauges) -> Iterator[Metric]:
    """Events by kind, and which providers are asked last."""
    events = CounterMetricFamily(
        "herma_events", "What happened in the fleet (GET /events).", labels=("event",)
    )
    for kind, count in now.events.items():
        events.add_metric((kind,), count)
    breakers = GaugeMetricFamily(
        "herma_provider_open",
        "1 while a provider that failed is asked last, or one at its limit not at all.",
        labels=("provider",),
    )
    for name, is_open in now.open_breakers.items():
        breakers.add_metric((name,), is_open)
    yield from (events, breakers)


def _of_workers(workers: tuple[WorkerView, ...]) -> Iterator[Metric]:
    """The state of each worker, and the kind of its engine's fault while that lasts. The cause is
    in the log and in `herma worker status`: a label must not hold free text.
    """
    state = GaugeMetricFamily(
        "herma_worker_state",
        "1 for the state of a worker: ready, unproven, draining, starting, down, asleep, falling "
        "asleep or waking.",
        labels=("worker", "state"),
    )
    fault = GaugeMetricFamily(
        "herma_worker_fault",
        "1 for the kind of fault of a worker whose engine is gone.",
        labels=("worker", "kind"),
    )
    for worker in workers:
        state.add_metric((worker.name, worker.state), 1)
        if worker.fault_kind is not None:
            fault.add_metric((worker.name, worker.fault_kind), 1)
    yield from (state, fault)


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
    for name, help_text in _ENGINE_GAUGES.items():
        family = GaugeMetricFamily(f"herma_engine_{name}", help_text, labels=("worker",))
        for worker in workers:
            if worker.load is not None:
                family.add_metric((worker.name,), _figure(worker.load, name))
        yield family
    yield from _of_drafts(workers)
    yield from _of_host_caches(workers)


def _of_drafts(workers: tuple[WorkerView, ...]) -> Iterator[Metric]:
    """What speculation brings, of engines that draft."""
    drafting = [
        (worker.name, worker.load.drafting)
        for worker in workers
        if worker.load is not None and worker.load.drafting is not None
    ]
    for name, help_text in _DRAFT_GAUGES.items():
        family = GaugeMetricFamily(f"herma_engine_draft_{name}", help_text, labels=("worker",))
        for worker, figures in drafting:
            family.add_metric((worker,), getattr(figures, name))
        yield family
    for name, help_text in _DRAFT_PLACES.items():
        family = GaugeMetricFamily(
            f"herma_engine_drafts_{name}", help_text, labels=("worker", "place")
        )
        for worker, figures in drafting:
            for place, count in enumerate(getattr(figures, name)[:_MOST_PLACES], 1):
                family.add_metric((worker, str(place)), count)
        yield family


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


def _of_host_caches(workers: tuple[WorkerView, ...]) -> Iterator[Metric]:
    """The prefix caches with a tier in the host's memory."""
    caches = [
        (worker.name, worker.load.cache)
        for worker in workers
        if worker.load is not None and worker.load.cache is not None
    ]
    for name, (figure, help_text) in _HOST_CACHE_GAUGES.items():
        family = GaugeMetricFamily(f"herma_engine_cache_host_{name}", help_text, labels=("worker",))
        for worker, use in caches:
            family.add_metric((worker,), getattr(use, figure))
        yield family
    hits = GaugeMetricFamily(
        "herma_engine_cache_hit_tokens",
        "Tokens of prompts found in the prefix cache since the engine's start, by tier.",
        labels=("worker", "tier"),
    )
    prompts = GaugeMetricFamily(
        "herma_engine_cache_prompt_tokens",
        "Tokens of all prompts that began since the engine's start.",
        labels=("worker",),
    )
    blocks = GaugeMetricFamily(
        "herma_engine_cache_blocks",
        "Cached blocks that the gateway knows of, by tier: on the card, or on the host alone.",
        labels=("worker", "tier"),
    )
    for worker, use in caches:
        hits.add_metric((worker, "card"), use.hit_tokens - use.loaded_tokens)
        hits.add_metric((worker, "host"), use.loaded_tokens)
        prompts.add_metric((worker,), use.prompt_tokens)
    for view in workers:
        if view.load is not None and view.load.cache is not None:
            blocks.add_metric((view.name, "card"), view.cached_blocks - view.host_blocks)
            blocks.add_metric((view.name, "host"), view.host_blocks)
    yield from (hits, prompts, blocks)


class _Rates(Collector):
    """Reads the refusals at each scrape."""

    def __init__(self, settings: EdgeSettings) -> None:
        self._settings = settings

    def collect(self) -> Iterator[Metric]:
        refusals = CounterMetricFamily(
            "herma_rate_limited",
            "Requests refused for what a key (name) or an address may use in a minute.",
            labels=("scope", "name", "unit"),
        )
        limits = self._settings.rate_limits
        for refused, count in {} if limits is None else limits.refusals.items():
            refusals.add_metric(refused, count)
        yield refusals


class _Spending(Collector):
    """Reads the books at each scrape."""

    def __init__(self, figures: Callable[[], SpendingFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        now = self._figures()
        spend = CounterMetricFamily(
            "herma_spend",
            "Cost of cloud requests since the start; unsettled ones at their most.",
            labels=("provider", "currency"),
        )
        reserved = GaugeMetricFamily(
            "herma_spend_reserved",
            "What the cloud requests under way can cost at most.",
            labels=("provider", "currency"),
        )
        for provider, micro in now.spent.items():
            spend.add_metric((provider, now.currency), micro / MICRO)
        unpriced = CounterMetricFamily(
            "herma_spend_unpriced_requests",
            "Cloud requests since the start whose cost is in no sum: no price says it.",
            labels=("provider",),
        )
        for provider, count in now.unpriced.items():
            unpriced.add_metric((provider,), count)
        for provider, micro in now.reserved.items():
            reserved.add_metric((provider, now.currency), micro / MICRO)
        refusals = CounterMetricFamily(
            "herma_spend_refusals",
            "Times that a limit kept a request from a provider.",
            labels=("scope", "name", "period"),
        )
        for (account, period), count in now.refusals.items():
            refusals.add_metric((account.kind, account.name, period), count)
        yield from (spend, reserved, unpriced, refusals, *_of_windows(now.windows))

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read the books."""
        return iter(())


def _of_windows(windows: tuple[LimitWindow, ...]) -> tuple[Metric, Metric]:
    labels = ("scope", "name", "period")
    limits = GaugeMetricFamily("herma_spend_limit", "The configured limits.", labels=labels)
    used = GaugeMetricFamily(
        "herma_spend_in_window",
        "What counts against a limit now: spent and reserved in its day or month.",
        labels=labels,
    )
    for window in windows:
        values = (window.account.kind, window.account.name, window.period)
        limits.add_metric(values, window.limit / MICRO)
        used.add_metric(values, (window.spent + window.reserved) / MICRO)
    return limits, used
