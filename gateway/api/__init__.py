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
    UpstreamUsage,
    Usage,
)
from gateway.api.messages_formatter import TokenCount, message_error, messages_format
from gateway.api.messages_parser import parse_messages
from gateway.api.output_grammar import OutputGrammar, schema_text
from gateway.api.output_grammar import too_large as grammar_too_large
from gateway.api.request import MAX_SESSION_CHARS, ChatRequest, Message, decode_object, typed_body
from gateway.api.responses_formatter import responses_format
from gateway.api.responses_parser import Responses, parse_responses
from gateway.api.signatures import KEY_BYTES, Signer
from gateway.api.tool_schemas import JsonForm, ToolSchema, json_text
from gateway.api.utility_bodies import (
    DetokenizeBody,
    Detokenized,
    Health,
    MessageModel,
    MessageModelList,
    ModelList,
    ModelObject,
    ModelState,
    TokenizeBody,
    Tokenized,
    Version,
    message_models,
)

__all__ = [
    "CHAT_FORMAT",
    "COUNTED",
    "KEY_BYTES",
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
    "MessageModel",
    "MessageModelList",
    "ModelList",
    "ModelObject",
    "ModelState",
    "OutputGrammar",
    "ReasoningDelta",
    "Responses",
    "Signer",
    "Started",
    "TextDelta",
    "TokenCount",
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
    "UpstreamUsage",
    "Usage",
    "Version",
    "busy",
    "chat_request",
    "completions_format",
    "connection_lost",
    "context_length_exceeded",
    "decode_object",
    "grammar_too_large",
    "invalid",
    "json_text",
    "message_error",
    "message_models",
    "messages_format",
    "model_not_found",
    "output_cap_required",
    "parse_chat_request",
    "parse_completions",
    "parse_messages",
    "parse_responses",
    "poisoned_request",
    "request_too_costly",
    "responses_format",
    "schema_text",
    "spending_limit_reached",
    "typed_body",
    "unavailable",
    "with_continuous_usage",
    "with_herma",
]
