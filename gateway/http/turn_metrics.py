"""Counts and durations of chat requests.

Owns the counts as plain numbers, and their Prometheus names at a scrape. Must not know how requests
run. The client library's own counters take a lock per number, which costs 20 us per request.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.telemetry import RequestTrace

_FIRST_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_DURATION_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


@final
class Histogram:
    """Counts of values: one for each of `bounds`, its upper bound, and one above the last."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, metric: Metric, labels: dict[str, str], created_at: float) -> None:
        """Add the samples of the histogram to `family`, with these labels."""
        so_far = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            so_far += count
            metric.add_sample(f"{metric.name}_bucket", {**labels, "le": str(bound)}, so_far)
        metric.add_sample(f"{metric.name}_count", labels, so_far)
        metric.add_sample(f"{metric.name}_sum", labels, self._sum)
        metric.add_sample(f"{metric.name}_created", labels, created_at)


@final
class _OfModel:
    """The counts of one model."""

    __slots__ = ("cached", "completion", "created_at", "duration", "first_token", "prompt")

    def __init__(self, created_at: float) -> None:
        self.created_at = created_at
        self.duration = Histogram(_DURATION_S)
        self.first_token = Histogram(_FIRST_TOKEN_S)
        self.prompt = self.cached = self.completion = 0


@final
class TurnMetrics(Collector):
    """Finished requests by model and end, and since when each series is counted. `known` gives the
    ends that are shown before they come.
    """

    def __init__(
        self,
        unix_time: Callable[[], float] = time.time,
        known: Callable[[], Iterable[tuple[str, int, str]]] = tuple,
    ) -> None:
        self._unix_time = unix_time
        self._known = known
        self._models: dict[str, _OfModel] = {}
        self._ends: dict[tuple[str, int, str], int] = {}
        self._ended_since: dict[tuple[str, int, str], float] = {}

    def observe(self, trace: RequestTrace) -> None:
        """Count one request that is over."""
        end = (trace.model, trace.status, trace.served_by)
        if end not in self._ends:
            self._begin(end)
        self._ends[end] += 1
        series = self._models[trace.model]
        if trace.ended_at is not None:
            series.duration.add(trace.ended_at - trace.received_at)
        if trace.first_at is not None:
            series.first_token.add(trace.first_at - trace.received_at)
        if (usage := trace.usage) is not None:
            series.prompt += usage.prompt_tokens
            series.cached += usage.cached_tokens
            series.completion += usage.completion_tokens

    def collect(self) -> Iterator[Metric]:
        """The metric families."""
        for end in self._known():
            if end not in self._ends:
                self._begin(end)
        yield self._requests()
        yield self._tokens()
        first_token = Metric(
            "herma_first_token_seconds", "From a request to its first content.", "histogram"
        )
        duration = Metric(
            "herma_request_seconds", "From a request to the end of its answer.", "histogram"
        )
        for model, series in self._models.items():
            labels = {"model": model}
            series.first_token.add_to(first_token, labels, series.created_at)
            series.duration.add_to(duration, labels, series.created_at)
        yield from (first_token, duration)

    def _begin(self, end: tuple[str, int, str]) -> None:
        now = self._unix_time()
        self._ends[end] = 0
        self._ended_since[end] = now
        if end[0] not in self._models:
            self._models[end[0]] = _OfModel(now)

    def _requests(self) -> Metric:
        requests = CounterMetricFamily(
            "herma_requests",
            "Chat requests by their end (499: the client left).",
            labels=("model", "status", "served_by"),
        )
        for end, count in self._ends.items():
            model, status, served_by = end
            since = self._ended_since[end]
            requests.add_metric((model, str(status), served_by), count, created=since)
        return requests

    def _tokens(self) -> Metric:
        tokens = CounterMetricFamily(
            "herma_tokens",
            "Tokens of answered requests; cached ones are part of the prompt.",
            labels=("model", "kind"),
        )
        for model, series in self._models.items():
            for kind in ("prompt", "cached", "completion"):
                labels, count = (model, kind), getattr(series, kind)
                tokens.add_metric(labels, count, created=series.created_at)
        return tokens
