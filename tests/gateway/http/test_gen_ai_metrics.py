"""Metrics under the names of OpenTelemetry's GenAI conventions: names, units, values."""

from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.api import Usage
from gateway.http.gen_ai_metrics import GenAiMetrics
from gateway.telemetry import RequestTrace, span_of

SUFFIXES = {"s": "_seconds", "{token}": ""}
"""The suffixes of units in Prometheus' spelling; a word in braces is not a unit."""


class Meter:
    """Takes the instruments of the conventions down."""

    def __init__(self) -> None:
        self.units: dict[str, str] = {}

    def create_histogram(self, *, name: str, unit: str, **_rest: str) -> None:
        self.units[name] = unit


def ended(**fields: Any) -> RequestTrace:
    given = {
        "api": "chat",
        "model": "m",
        "status": 200,
        "served_by": "worker",
        "received_at": 10.0,
        "first_at": 10.3,
        "ended_at": 12.3,
        "usage": Usage(1000, 900, 101),
        **fields,
    }
    return RequestTrace(**given)


def samples_of(*traces: RequestTrace) -> dict[tuple[str, str], float]:
    """Sums and counts by name and provider, operation, error or type."""
    metrics, registry = GenAiMetrics(lambda: 1.8e9), CollectorRegistry()
    registry.register(metrics)
    for trace in traces:
        metrics.observe(trace)
    text = generate_latest(registry).decode()
    return {
        (
            sample.name,
            " ".join(
                value
                for name, value in sorted(sample.labels.items())
                if name not in {"le", "gen_ai_request_model", "gen_ai_response_model"}
            ),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def test_names_and_units_are_those_of_the_conventions() -> None:
    """Names and units are those of the conventions, as their own package defines them."""
    meter = Meter()
    for create in (
        gen_ai_metrics.create_gen_ai_server_request_duration,
        gen_ai_metrics.create_gen_ai_server_time_to_first_token,
        gen_ai_metrics.create_gen_ai_server_time_per_output_token,
        gen_ai_metrics.create_gen_ai_client_token_usage,
    ):
        create(meter)  # type: ignore[arg-type]
    expected = {name.replace(".", "_") + SUFFIXES[unit] for name, unit in meter.units.items()}
    metrics = GenAiMetrics()
    metrics.observe(ended(status=502))
    families = list(metrics.collect())
    assert {family.name for family in families} == expected
    attributes = {
        gen_ai_attributes.GEN_AI_OPERATION_NAME,
        gen_ai_attributes.GEN_AI_PROVIDER_NAME,
        gen_ai_attributes.GEN_AI_REQUEST_MODEL,
        gen_ai_attributes.GEN_AI_RESPONSE_MODEL,
        gen_ai_attributes.GEN_AI_TOKEN_TYPE,
        error_attributes.ERROR_TYPE,
        "le",
    }
    labels = {name for family in families for one in family.samples for name in one.labels}
    assert labels == {name.replace(".", "_") for name in attributes}


def test_spans_use_the_names_of_the_conventions() -> None:
    """All but ours, which begin with `herma.`."""
    known = {
        value
        for name, value in vars(gen_ai_attributes).items()
        if name.isupper() and isinstance(value, str)
    } | {error_attributes.ERROR_TYPE, "http.response.status_code"}
    span = span_of(ended(status=502, finish="stop"))
    assert {name for name in span.attributes if not name.startswith("herma.")} <= known


def test_a_request_is_counted_in_seconds_and_tokens() -> None:
    """0.3 s to the first token, 2 s for the hundred that follow."""
    told = samples_of(ended(), ended(api="messages"))
    kind = "chat herma"
    assert told["gen_ai_server_request_duration_seconds_sum", kind] == pytest.approx(4.6)
    assert told["gen_ai_server_time_to_first_token_seconds_sum", kind] == pytest.approx(0.6)
    assert told["gen_ai_server_time_per_output_token_seconds_sum", kind] == pytest.approx(0.04)
    assert told["gen_ai_client_token_usage_sum", f"{kind} input"] == 2000
    assert told["gen_ai_client_token_usage_sum", f"{kind} output"] == 202
    assert told["gen_ai_client_token_usage_count", f"{kind} output"] == 2


def test_failures_and_providers_have_series_of_their_own() -> None:
    """A failure has a duration, and no first token."""
    told = samples_of(
        ended(status=502, served_by="cloud:deepseek"),
        ended(api="completions", usage=None),
        ended(api="images/generations", first_at=None, usage=None),
    )
    assert told["gen_ai_server_request_duration_seconds_count", "502 chat deepseek"] == 1
    assert ("gen_ai_server_time_to_first_token_seconds_count", "502 chat deepseek") not in told
    assert told["gen_ai_server_time_to_first_token_seconds_count", "text_completion herma"] == 1
    assert told["gen_ai_server_time_per_output_token_seconds_count", "text_completion herma"] == 0
    assert told["gen_ai_server_request_duration_seconds_count", "other herma"] == 1


def test_paths_of_clients_leave_nothing_behind() -> None:
    """However many there are: one series, and no memory of their words."""
    metrics = GenAiMetrics()
    for number in range(100):
        metrics.observe(ended(api=f"images/{number}"))
        metrics.observe(ended())
    assert len(metrics._series) == 2
    assert len(metrics._by_key) == 1


@pytest.mark.parametrize("seconds", [0.01, 0.0100001, 81.92, 1e6])
def test_a_value_is_in_the_buckets_from_its_bound_on(seconds: float) -> None:
    """Bounds include their value; the last bucket takes all."""
    metrics = GenAiMetrics()
    metrics.observe(ended(ended_at=10.0 + seconds))
    (family,) = (one for one in metrics.collect() if "duration" in one.name)
    counts = {
        float(one.labels["le"]): one.value for one in family.samples if one.name.endswith("_bucket")
    }
    trace_s = 10.0 + seconds - 10.0
    assert all(count == (bound >= trace_s) for bound, count in counts.items())
    assert len(counts) == 15
