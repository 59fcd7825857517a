"""Requests under the names of OpenTelemetry's GenAI conventions, as Prometheus spells them.

Owns the names, attributes and buckets that the conventions define (dots become `_`, the unit is the
suffix, `{token}` has none). Must not know how requests run. Labels hold only configured names, no
text from a client.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.http.turn_metrics import Histogram
from gateway.telemetry import OTHER, RequestTrace, operation_of, provider_of

_OK: Final = 200

_DURATION_S: Final = tuple(0.01 * 2**power for power in range(14))
_FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_PER_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS: Final = tuple(float(4**power) for power in range(14))


class _Kind(NamedTuple):
    """The labels of a series. `error` is the HTTP status of a request that failed."""

    operation: str
    provider: str
    model: str
    error: str


@final
class _Series:
    __slots__ = ("created_at", "duration", "first_token", "input", "output", "per_token")

    def __init__(self, created_at: float) -> None:
        self.created_at = created_at
        self.duration = Histogram(_DURATION_S)
        self.first_token = Histogram(_FIRST_TOKEN_S)
        self.per_token = Histogram(_PER_TOKEN_S)
        self.input = Histogram(_TOKENS)
        self.output = Histogram(_TOKENS)


@final
class GenAiMetrics(Collector):
    """Ended requests. `unix_time` says since when a series is counted."""

    def __init__(self, unix_time: Callable[[], float] = time.time) -> None:
        self._unix_time = unix_time
        self._series: dict[_Kind, _Series] = {}
        self._by_key: dict[tuple[str, str, str, int], _Series] = {}

    def observe(self, trace: RequestTrace) -> None:
        """Count one request that is over. Times to the first token and per token are counted for
        successful requests only.
        """
        went_well = trace.status == _OK
        key = (trace.api, trace.served_by, trace.model, trace.status)
        series = self._by_key.get(key) or self._add_key(key, trace)
        ended_at, first_at = trace.ended_at, trace.first_at
        if ended_at is not None:
            series.duration.add(ended_at - trace.received_at)
        if (usage := trace.usage) is not None:
            series.input.add(usage.prompt_tokens)
            series.output.add(usage.completion_tokens)
        if not went_well or first_at is None:
            return
        series.first_token.add(first_at - trace.received_at)
        if usage is not None and usage.completion_tokens > 1 and ended_at is not None:
            series.per_token.add((ended_at - first_at) / (usage.completion_tokens - 1))

    def _add_key(self, key: tuple[str, str, str, int], trace: RequestTrace) -> _Series:
        """The series of such requests, found at once from the second one on."""
        error = "" if trace.status == _OK else str(trace.status)
        kind = _Kind(operation_of(trace), provider_of(trace), trace.model, error)
        series = self._series.get(kind)
        if series is None:
            series = self._series[kind] = _Series(self._unix_time())
        if kind.operation != OTHER:  # paths of clients are not kept
            self._by_key[key] = series
        return series

    def collect(self) -> Iterator[Metric]:
        """The metric families."""
        duration = Metric(
            "gen_ai_server_request_duration_seconds",
            "From a request to the last byte of its answer.",
            "histogram",
        )
        first_token = Metric(
            "gen_ai_server_time_to_first_token_seconds",
            "To the first token, of requests that went well.",
            "histogram",
        )
        per_token = Metric(
            "gen_ai_server_time_per_output_token_seconds",
            "Per output token after the first, of requests that went well.",
            "histogram",
        )
        usage = Metric("gen_ai_client_token_usage", "Input and output tokens used.", "histogram")
        for kind, series in self._series.items():
            labels, since = _labels(kind), series.created_at
            series.duration.add_to(duration, labels, since)
            series.input.add_to(usage, {**labels, "gen_ai_token_type": "input"}, since)
            series.output.add_to(usage, {**labels, "gen_ai_token_type": "output"}, since)
            if not kind.error:
                series.first_token.add_to(first_token, labels, since)
                series.per_token.add_to(per_token, labels, since)
        yield from (duration, first_token, per_token, usage)


def _labels(kind: _Kind) -> dict[str, str]:
    labels = {
        "gen_ai_operation_name": kind.operation,
        "gen_ai_provider_name": kind.provider,
        "gen_ai_request_model": kind.model,
    }
    if kind.model != "unknown":
        labels["gen_ai_response_model"] = kind.model
    return {**labels, "error_type": kind.error} if kind.error else labels
