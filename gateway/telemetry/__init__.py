"""What operators see happen: the fleet's events, their feed, and counters.

Must not know the listeners or any metrics library.
"""

from gateway.telemetry.counters import Counters
from gateway.telemetry.event_feed import EventFeed, Listener, PublishedEvent
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
)

__all__ = [
    "AnswerCut",
    "BreakerClosed",
    "BreakerOpen",
    "ConfigReloaded",
    "Counters",
    "EngineFault",
    "EventFeed",
    "FallbackOff",
    "FallbackOn",
    "FleetEvent",
    "HealthProbeFailed",
    "IndexGap",
    "LimitReached",
    "Listener",
    "PoisonedRequest",
    "ProviderFailed",
    "PublishedEvent",
    "RequestDetached",
    "Rerouted",
    "Resumed",
    "RetryRefused",
    "SpendingThreshold",
    "TakenOver",
    "WorkerBack",
    "WorkerLost",
    "WorkerReady",
    "WorkerStarting",
]
