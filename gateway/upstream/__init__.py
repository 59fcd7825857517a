"""Providers: OpenAI-compatible APIs of others.

Owns the exchange with one provider: what is sent to it, which part of its answer reaches the
client, and how it fails. Must not know which provider is asked when.
"""

from gateway.upstream.answer import Answer, AnswerFiltered, ProviderCut, ProviderFailed
from gateway.upstream.chat_events import ChatEvents
from gateway.upstream.forwarded_headers import Header, forwarded_to_provider
from gateway.upstream.kept_calls import CallsMade, KeptCalls
from gateway.upstream.provider import Provider
from gateway.upstream.provider_request import (
    ProviderRequest,
    apply_params,
    provider_request,
    session_name,
)
from gateway.upstream.sse import EventSplitter
from gateway.upstream.thinking_switch import switch_at
from gateway.upstream.usage import UsageTail

__all__ = [
    "Answer",
    "AnswerFiltered",
    "CallsMade",
    "ChatEvents",
    "EventSplitter",
    "Header",
    "KeptCalls",
    "Provider",
    "ProviderCut",
    "ProviderFailed",
    "ProviderRequest",
    "UsageTail",
    "apply_params",
    "forwarded_to_provider",
    "provider_request",
    "session_name",
    "switch_at",
]
