"""Spans by OTLP over HTTP, with OpenTelemetry's own SDK and exporter.

Owns the SDK's objects and the thread in which they work. OpenTelemetry is imported only here, and
this file only when spans are exported: it is an optional extra. Headers, certificates and more
attributes of the resource come from the variables that the SDK reads, as
OTEL_EXPORTER_OTLP_HEADERS.
"""

import logging
from collections.abc import Sequence
from typing import Final, final

import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.telemetry.request_span import RequestSpan

ATTEMPT_S: Final = 5.0
_NAME: Final = "herma"

_parent_of: Final = TraceContextTextMapPropagator().extract


@final
class OtlpSender:
    """Sends to `endpoint`. `sample` is the recorded share of requests whose client names no span. A
    request whose client names a span is recorded if the client's flag is set. `process` is the
    index of this process, if there are several.
    """

    def __init__(
        self, endpoint: str, version: str, process: str | None = None, sample: float = 1.0
    ) -> None:
        # The exporter logs each failed try with its address; ours is one line for all of them.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        known = {"service.name": _NAME, "service.version": version}
        if process is not None:
            known["service.instance.id"] = process
        provider = TracerProvider(
            # OTEL_RESOURCE_ATTRIBUTES adds to these.
            resource=Resource.create(known),
            sampler=ParentBasedTraceIdRatio(sample),
            shutdown_on_exit=False,
        )
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=ATTEMPT_S)
        self._tracer = provider.get_tracer(_NAME, version)

    async def send(self, spans: Sequence[RequestSpan]) -> bool:
        """Hand spans to the collector, in a thread; False if the collector did not take them."""
        return await trio.to_thread.run_sync(self._export, spans, abandon_on_cancel=True)

    def _export(self, spans: Sequence[RequestSpan]) -> bool:
        recorded = [span for one in spans if (span := self._recorded(one)) is not None]
        return not recorded or self._exporter.export(recorded) is SpanExportResult.SUCCESS

    def _recorded(self, one: RequestSpan) -> ReadableSpan | None:
        """The SDK's span; None if its trace is not sampled."""
        parent, state = one.parent
        span = self._tracer.start_span(
            one.name,
            context=_parent_of({"traceparent": parent, "tracestate": state}),
            kind=SpanKind.SERVER,
            attributes=one.attributes,
            start_time=one.start_ns,
        )
        if not isinstance(span, Span):
            return None
        for event in one.events:
            span.add_event(event.name, event.attributes, timestamp=event.unix_ns)
        if one.error:
            span.set_status(Status(StatusCode.ERROR, one.error))
        span.end(end_time=one.end_ns)
        return span
