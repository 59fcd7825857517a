"""The span of a request, by OpenTelemetry's conventions for generative AI.

Owns the names of operations, providers and attributes, and the span of an ended request: its times
in Unix nanoseconds, its phases as events. Pure: it reads no clock, and knows no library. No
attribute holds text of a prompt or an answer.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.telemetry.request_traces import OK, AttemptTrace, RequestTrace

Value = str | int | float | bool | tuple[str, ...]

_OURS: Final = "herma"
"""The provider name for answers of our own workers."""
_OPERATIONS: Final = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
OTHER: Final = "other"
"""The operation of a path that is passed on as it is."""
_SERVER_ERROR: Final = 500
_NS: Final = 1_000_000_000
_UNKNOWN: Final = "unknown"
"""The model of a request that names none of ours: no model has answered it."""


class SpanEvent(msgspec.Struct, frozen=True):
    """A phase has begun: `queued`, `prefill`, `decode`, `cloud`; or a server has `failed`."""

    name: str
    unix_ns: int
    attributes: dict[str, Value] = {}


class RequestSpan(msgspec.Struct, frozen=True):
    """`parent` holds the headers `traceparent` and `tracestate` of the client. `error` is a failure
    on our side, never a mistake of the client.
    """

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: tuple[SpanEvent, ...] = ()
    parent: tuple[str, str] = ("", "")
    error: str = ""


def operation_of(trace: RequestTrace) -> str:
    """What was asked for; paths that are passed on as they are have no name of their own."""
    return _OPERATIONS.get(trace.api, OTHER)


def provider_of(trace: RequestTrace) -> str:
    """The configured name of the provider that answered; for a worker, Herma."""
    return trace.served_by.removeprefix("cloud:") if ":" in trace.served_by else _OURS


def span_of(trace: RequestTrace) -> RequestSpan:
    """The span of a request that has ended."""
    end_s = trace.received_at if trace.ended_at is None else trace.ended_at
    is_ours = trace.status >= _SERVER_ERROR
    return RequestSpan(
        name=f"{operation_of(trace)} {trace.model}",
        start_ns=_ns(trace, trace.received_at),
        end_ns=_ns(trace, end_s),
        attributes=dict(_attributes(trace)),
        events=tuple(_events(trace)),
        parent=trace.parent,
        error=(trace.error or str(trace.status)) if is_ours else "",
    )


def _ns(trace: RequestTrace, at: float) -> int:
    return int(trace.unix_time * _NS) + int((at - trace.received_at) * _NS)


def _attributes(trace: RequestTrace) -> Iterator[tuple[str, Value]]:
    turn, attempts = trace.turn, trace.turn.attempts
    yield "gen_ai.operation.name", operation_of(trace)
    yield "gen_ai.provider.name", provider_of(trace)
    yield "gen_ai.request.model", trace.model
    if trace.model != _UNKNOWN:
        yield "gen_ai.response.model", trace.model
    yield "gen_ai.response.id", trace.id
    yield "gen_ai.request.stream", trace.is_stream
    yield "http.response.status_code", trace.status
    if trace.finish:
        yield "gen_ai.response.finish_reasons", (trace.finish,)
    if trace.first_at is not None and trace.is_stream:
        yield "gen_ai.response.time_to_first_chunk", trace.first_at - trace.received_at
    if trace.status != OK:
        yield "error.type", trace.error or str(trace.status)
    if (usage := trace.usage) is not None:
        yield "gen_ai.usage.input_tokens", usage.prompt_tokens
        yield "gen_ai.usage.output_tokens", usage.completion_tokens
        yield "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
    if attempts and not attempts[-1].is_cloud:
        yield "herma.worker", attempts[-1].server
    yield "herma.served_by", trace.served_by
    yield "herma.key", trace.key
    yield "herma.client", trace.client
    yield "herma.attempts", turn.num_attempts


def _events(trace: RequestTrace) -> Iterator[SpanEvent]:
    """The phases of the first choice, in order."""
    for attempt in trace.turn.attempts:
        if not attempt.choice:
            yield from _events_of(trace, attempt)


def _events_of(trace: RequestTrace, attempt: AttemptTrace) -> Iterator[SpanEvent]:
    if attempt.began_at > attempt.asked_at:
        yield SpanEvent("queued", _ns(trace, attempt.asked_at))
    placed: dict[str, Value] = {
        "herma.server": attempt.server,
        "herma.reason": attempt.reason,
        "herma.cached_tokens": attempt.cached_tokens,
    }
    phase = "cloud" if attempt.is_cloud else "prefill"
    yield SpanEvent(phase, _ns(trace, attempt.began_at), placed)
    if attempt.first_at is not None:
        yield SpanEvent("decode", _ns(trace, attempt.first_at))
    if attempt.ended_at is not None and attempt.end:
        yield SpanEvent("failed", _ns(trace, attempt.ended_at), {"herma.reason": attempt.end})
