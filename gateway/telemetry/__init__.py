"""What operators see happen: the fleet's events, their feed, counters, and each request's trace.

Must not know the listeners or any metrics library.
"""

from gateway.telemetry.audit_trail import AuditTrail
from gateway.telemetry.counters import COUNTED, GatewayCounters
from gateway.telemetry.event_feed import EventFeed, Listener, PublishedEvent
from gateway.telemetry.event_words import Level, words_of
from gateway.telemetry.fleet_events import (
    AnswerCut,
    BreakerClosed,
    BreakerOpen,
    CallsUnknown,
    ConfigReloaded,
    ConversationRefused,
    EngineFault,
    FallbackOff,
    FallbackOn,
    FleetEvent,
    HealthProbeFailed,
    IndexGap,
    LimitReached,
    LoopFound,
    PoisonedRequest,
    ProcessReplaced,
    ProviderFailed,
    RequestDetached,
    Rerouted,
    Resumed,
    RetryRefused,
    SleepTrouble,
    SpeedBack,
    SpeedLost,
    SpendingThreshold,
    StoreName,
    StoreStuck,
    StoreWell,
    TakenOver,
    TurnsThrash,
    WorkerAsleep,
    WorkerAwake,
    WorkerBack,
    WorkerLost,
    WorkerProven,
    WorkerReady,
    WorkerStarting,
    WorkerUnproven,
    WorkerWaking,
)
from gateway.telemetry.history import SAMPLE_S, History, HistorySample, Reading, percentile
from gateway.telemetry.request_log import log_request, request_line
from gateway.telemetry.request_span import (
    OTHER,
    RequestSpan,
    SpanEvent,
    operation_of,
    provider_of,
    span_of,
)
from gateway.telemetry.request_traces import (
    AnsweredAttempt,
    AttemptTrace,
    CandidateWorker,
    Decision,
    Limited,
    RequestTrace,
    RequestTraces,
    TurnTrace,
)
from gateway.telemetry.span_export import SpanExport
from gateway.telemetry.store_trouble import StoreTrouble
