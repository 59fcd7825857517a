"""What operators see happen: the fleet's events, their feed, counters, and each request's trace.

Must not know the listeners or any metrics library.
"""

from gateway.telemetry.audit_trail import AuditTrail
from gateway.telemetry.counters import Counters
from gateway.telemetry.event_feed import EventFeed, Listener, PublishedEvent
from gateway.telemetry.event_words import Level, words_of
from gateway.telemetry.fleet_events import (
    AdminAct,
    AnswerCut,
    BreakerClosed,
    BreakerOpen,
    ConfigReloaded,
    EngineFault,
    FallbackOff,
    FallbackOn,
    FleetEvent,
    HealthProbeFailed,
    IndexGap,
    LimitReached,
    PoisonedRequest,
    ProviderFailed,
    RequestDetached,
    Rerouted,
    Resumed,
    RetryRefused,
    SpendingThreshold,
    TakenOver,
    WorkerBack,
    WorkerLost,
    WorkerReady,
    WorkerStarting,
    kind_of,
)
from gateway.telemetry.history import SAMPLE_S, History, Reading, Sample, percentile
from gateway.telemetry.request_log import log_request, request_line
from gateway.telemetry.request_span import (
    RequestSpan,
    SpanEvent,
    operation_of,
    provider_of,
    span_of,
)
from gateway.telemetry.request_traces import (
    AttemptTrace,
    Candidate,
    Decision,
    RequestTrace,
    RequestTraces,
    TurnTrace,
)
from gateway.telemetry.span_export import SpanExport

__all__ = [
    "SAMPLE_S",
    "AdminAct",
    "AnswerCut",
    "AttemptTrace",
    "AuditTrail",
    "BreakerClosed",
    "BreakerOpen",
    "Candidate",
    "ConfigReloaded",
    "Counters",
    "Decision",
    "EngineFault",
    "EventFeed",
    "FallbackOff",
    "FallbackOn",
    "FleetEvent",
    "HealthProbeFailed",
    "History",
    "IndexGap",
    "Level",
    "LimitReached",
    "Listener",
    "PoisonedRequest",
    "ProviderFailed",
    "PublishedEvent",
    "Reading",
    "RequestDetached",
    "RequestSpan",
    "RequestTrace",
    "RequestTraces",
    "Rerouted",
    "Resumed",
    "RetryRefused",
    "Sample",
    "SpanEvent",
    "SpanExport",
    "SpendingThreshold",
    "TakenOver",
    "TurnTrace",
    "WorkerBack",
    "WorkerLost",
    "WorkerReady",
    "WorkerStarting",
    "kind_of",
    "log_request",
    "operation_of",
    "percentile",
    "provider_of",
    "request_line",
    "span_of",
    "words_of",
]
