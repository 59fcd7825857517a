"""What clients send and what they read: request bodies, errors, events, answer formatting.

Owns the types and rules of the OpenAI-compatible APIs, and the one event stream (`events.py`)
behind them. Must not know HTTP, tokenizers, workers or how a turn runs. Pure.
"""

from gateway.api.api_format import (
    COUNTED,
    AnswerHead,
    ApiFormat,
    with_continuous_usage,
    with_herma,
)
from gateway.api.byte_lru import ByteLru
from gateway.api.chat_formatter import CHAT_FORMAT
from gateway.api.chat_parser import chat_request, parse_chat_request
from gateway.api.completions_formatter import completions_format
from gateway.api.completions_parser import Completions, parse_completions
from gateway.api.errors import (
    ApiError,
    busy,
    connection_lost,
    context_length_exceeded,
    invalid,
    model_not_found,
    output_cap_required,
    poisoned_request,
    request_too_costly,
    spending_limit_reached,
    unavailable,
)
from gateway.api.events import (
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallEvent,
    ToolCallStart,
    TopLogprob,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    Usage,
)
from gateway.api.request import MAX_SESSION_CHARS, ChatRequest, Message, decode_object, typed_body
from gateway.api.tool_schemas import JsonForm, ToolSchema, json_text
from gateway.api.utility_bodies import (
    DetokenizeBody,
    Detokenized,
    Health,
    ModelList,
    ModelObject,
    ModelState,
    TokenizeBody,
    Tokenized,
    Version,
)

__all__ = [
    "CHAT_FORMAT",
    "COUNTED",
    "MAX_SESSION_CHARS",
    "AnswerHead",
    "ApiError",
    "ApiFormat",
    "ByteLru",
    "ChatRequest",
    "Completions",
    "DetokenizeBody",
    "Detokenized",
    "Failed",
    "Finished",
    "Health",
    "JsonForm",
    "Message",
    "ModelList",
    "ModelObject",
    "ModelState",
    "ReasoningDelta",
    "Started",
    "TextDelta",
    "TokenLogprob",
    "TokenizeBody",
    "Tokenized",
    "ToolCallArguments",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallEvent",
    "ToolCallStart",
    "ToolSchema",
    "TopLogprob",
    "TurnEvent",
    "UpstreamBody",
    "UpstreamChunk",
    "Usage",
    "Version",
    "busy",
    "chat_request",
    "completions_format",
    "connection_lost",
    "context_length_exceeded",
    "decode_object",
    "invalid",
    "json_text",
    "model_not_found",
    "output_cap_required",
    "parse_chat_request",
    "parse_completions",
    "poisoned_request",
    "request_too_costly",
    "spending_limit_reached",
    "typed_body",
    "unavailable",
    "with_continuous_usage",
    "with_herma",
]
