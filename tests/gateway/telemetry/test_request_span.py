"""The span of a request that is over."""

from gateway.api import Usage
from gateway.telemetry import AttemptTrace, RequestTrace, SpanEvent, TurnTrace, span_of

MS = 1_000_000
START = 1_800_000_000_000 * MS


def moved() -> RequestTrace:
    """A worker lost it after its first token, a provider went on."""
    worker = AttemptTrace(
        "gpu0", 10.01, 10.05, "gpu0: it was free", first_at=10.3, ended_at=10.5, end="engine died",
        cached_tokens=64,
    )  # fmt: skip
    other_choice = AttemptTrace("gpu1", 10.0, 10.1, "gpu1", choice=1)
    cloud = AttemptTrace("deepseek", 10.5, 10.5, "no worker", is_cloud=True, first_at=10.9)
    turn = TurnTrace(attempts=[worker, other_choice, cloud], num_attempts=3)
    return RequestTrace(
        id="chatcmpl-1", api="chat", model="m", received_at=10.0, unix_time=1.8e9, first_at=10.3,
        ended_at=12.0, status=200, served_by="cloud:deepseek", usage=Usage(100, 64, 9),
        parent=("00-a-b-01", "x=1"), turn=turn, finish="stop",
    )  # fmt: skip


def test_phases_are_events_in_order() -> None:
    """The phases of the first choice are events in order, in Unix nanoseconds."""
    span = span_of(moved())
    assert (span.name, span.parent, span.error) == ("chat m", ("00-a-b-01", "x=1"), "")
    assert [(one.name, round((one.unix_ns - START) / MS)) for one in span.events] == [
        ("queued", 10), ("prefill", 50), ("decode", 300), ("failed", 500), ("cloud", 500),
        ("decode", 900),
    ]  # fmt: skip
    assert span.events[1].attributes == {
        "herma.server": "gpu0",
        "herma.reason": "gpu0: it was free",
        "herma.cached_tokens": 64,
    }
    assert isinstance(span.events[3], SpanEvent)
    assert span.events[3].attributes == {"herma.reason": "engine died"}
    assert span.end_ns - span.start_ns == 2000 * MS


def test_attributes_say_who_answered() -> None:
    """A provider by its configured name; the worker only if it had the request last."""
    told = span_of(moved()).attributes
    assert told["gen_ai.provider.name"] == "deepseek"
    assert told["gen_ai.usage.cache_read.input_tokens"] == 64
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert "herma.worker" not in told
    assert "error.type" not in told


def test_only_our_own_failures_are_errors() -> None:
    """A client's mistake, or one that left, is not; its type is said all the same."""
    lost = RequestTrace(status=502, error="no_provider_answered", served_by="none")
    left = RequestTrace(status=499)
    assert span_of(lost).error == "no_provider_answered"
    assert span_of(left).error == ""
    assert span_of(left).attributes["error.type"] == "499"
    assert span_of(left).end_ns == span_of(left).start_ns


def test_what_did_not_happen_is_left_out() -> None:
    """A whole answer has no first chunk; a request for an unknown model was answered by none."""
    chunk = "gen_ai.response.time_to_first_chunk"
    whole = moved()
    assert chunk not in span_of(whole).attributes
    whole.is_stream = True
    assert chunk in span_of(whole).attributes
    unknown = span_of(RequestTrace(model="unknown", status=404)).attributes
    assert "gen_ai.response.model" not in unknown
    assert unknown["gen_ai.request.model"] == "unknown"
