"""Providers: OpenAI-compatible APIs of others.

Owns the exchange with one provider: what is sent to it, which part of its answer reaches the
client, and how it fails. Must not know which provider is asked when.
"""

from gateway.upstream.answer import AnswerFiltered, ProviderAnswer, ProviderCut, ProviderUnavailable
from gateway.upstream.chat_events import ChatEvents
from gateway.upstream.checked_completions import WholeBody
from gateway.upstream.chunk_heads import head_of, with_head
from gateway.upstream.continuation import (
    CannotContinue,
    continued,
    form_at,
    is_same_model,
    limit_of,
    needs_dropped,
    stops_of,
)
from gateway.upstream.continued_stream import (
    ContinuedStream,
    NotContinued,
    StopReached,
    ended_by_length,
)
from gateway.upstream.forwarded_headers import Header, forwarded_to_provider
from gateway.upstream.kept_calls import CallsMade, KeptCalls
from gateway.upstream.provider import Provider
from gateway.upstream.provider_request import (
    ProviderRequest,
    apply_params,
    provider_request,
    session_name,
)
from gateway.upstream.request_forms import CallIdForm, CapField, cap_at, ids_at, with_forms
from gateway.upstream.sent_answer import SentAnswer
from gateway.upstream.sse import ProviderEventSplitter
from gateway.upstream.thinking_switch import switch_at
from gateway.upstream.thoughts import field_at
from gateway.upstream.usage import (
    UsageTail,
    asks_for_usage,
    said_in,
    usage_chunk_of,
    with_usage,
)
