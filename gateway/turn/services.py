"""The parts of a running gateway that turns use.

Owns the composition that `gateway/app.py` builds. Must not create anything itself: no socket,
client or task starts here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from config import Config
from gateway.link import ModelTexts, WorkerLink
from gateway.prompt import DigestCache
from gateway.responses import StoredResponses
from gateway.routing import Dispatcher
from gateway.spending import Spending
from gateway.telemetry import AuditTrail, EventFeed, GatewayCounters, RequestTraces, SpanExport
from gateway.turn.conversation_tracker import ConversationTracker
from gateway.turn.encoding import Encoding
from gateway.turn.model_prompts import ModelPrompt
from gateway.turn.open_turns import OpenTurns
from gateway.turn.provider_health import ProviderHealth
from gateway.turn.retry_policy import RetryBudget
from gateway.upstream import KeptCalls, Provider


@dataclass(slots=True)
class Services:
    """`prompts` has what the configuration says of models' templates. `signing_key` signs reasoning
    that clients send back; `draw` gives random bytes; once `draining` is set, new requests are
    refused with 503. Only a reload writes `config`, `prompts` and `providers`. A reload removes no
    provider, because requests that run may still ask it.
    """

    config: Config
    dispatcher: Dispatcher
    link: WorkerLink
    files: ModelTexts
    providers: dict[str, Provider]
    counters: GatewayCounters
    spending: Spending
    feed: EventFeed
    health: ProviderHealth
    retries: RetryBudget
    open_turns: OpenTurns
    traces: RequestTraces
    signing_key: bytes
    stored: StoredResponses
    audit: AuditTrail
    conversation_tracker: ConversationTracker
    span_export: SpanExport | None = None
    prompts: dict[str, ModelPrompt] = field(default_factory=dict)
    digests: DigestCache = field(default_factory=DigestCache)
    encoding: Encoding = field(default_factory=Encoding)
    draining: trio.Event = field(default_factory=trio.Event)
    kept_calls: KeptCalls = field(default_factory=KeptCalls)
    draw: Callable[[int], bytes] = os.urandom
