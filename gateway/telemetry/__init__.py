"""What operators see happen: the fleet's events, their feed, counters, and each request's trace.

Must not know the listeners or any metrics library.
"""

from gateway.telemetry.counters import Counters
from gateway.telemetry.event_feed import EventFeed, Listener, PublishedEvent
from gateway.telemetry.event_words import Level, words_of
from gateway.telemetry.fleet_events import (
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
from gateway.telemetry.request_trace import (
    AttemptTrace,
    Candidate,
    Decision,
    RequestTrace,
    TurnTrace,
)
from gateway.telemetry.request_traces import RequestTraces

__all__ = [
    "SAMPLE_S",
    "AnswerCut",
    "AttemptTrace",
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
    "RequestTrace",
    "RequestTraces",
    "Rerouted",
    "Resumed",
    "RetryRefused",
    "Sample",
    "SpendingThreshold",
    "TakenOver",
    "TurnTrace",
    "WorkerBack",
    "WorkerLost",
    "WorkerReady",
    "WorkerStarting",
    "kind_of",
    "percentile",
    "words_of",
]
