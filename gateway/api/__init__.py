"""What clients send and what they read: request bodies, errors, events, answer formatting.

Owns the types and rules of the OpenAI-compatible APIs, and the one event stream (`events.py`)
behind them. Must not know HTTP, tokenizers, workers or how a turn runs. Pure.
"""

from gateway.api.api_format import (
    COUNTED,
    DONE,
    AnswerHead,
    ApiFormat,
    UsageObject,
    with_continuous_usage,
    with_herma,
)
from gateway.api.body_bounds import SMALL_BYTES, check_counts, is_quickly_read
from gateway.api.byte_lru import ByteLru
from gateway.api.call_ids import is_numbered, numbered_on
from gateway.api.chat_as_responses import parse_any_chat
from gateway.api.chat_formatter import CHAT_FORMAT, custom_chat_format
from gateway.api.chat_parser import (
    BEGUN,
    Rewrite,
    chat_request,
    parse_chat_request,
)
from gateway.api.completions_formatter import Echo, completions_format
from gateway.api.completions_parser import Completions, parse_completions
from gateway.api.embeddings import (
    EmbeddingsBuilder,
    embeddings_format,
    parse_embeddings,
)
from gateway.api.errors import (
    MAX_RETRY_AFTER_S,
    OVERFLOW,
    ApiError,
    as_event,
    as_payment_required,
    as_unsent,
    busy,
    connection_lost,
    context_length_exceeded,
    field_without_price,
    invalid,
    model_not_found,
    output_cap_required,
    overflow_error,
    poisoned_request,
    request_too_costly,
    spending_limit_reached,
    stopping,
    unavailable,
)
from gateway.api.events import (
    Annotation,
    ChoiceFinished,
    ContentEvent,
    Embedded,
    Failed,
    PromptScored,
    ReasoningDelta,
    Restarted,
    Started,
    StopReason,
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
from gateway.api.json_body import (
    decode_object,
    guard_tools,
    typed_body,
    without_halves,
)
from gateway.api.long_texts import LONG_BODY_BYTES, LongTexts, PromptField, long_texts
from gateway.api.messages_formatter import TokenCount, message_error, messages_format
from gateway.api.messages_parser import parse_messages
from gateway.api.named_body import NamedBody, missing_model, named_body
from gateway.api.output_grammar import OutputGrammar, SchemaSource, schema_source
from gateway.api.output_grammar import too_large as grammar_too_large
from gateway.api.passed_paths import (
    ChargedBy,
    charged_by,
    check_target,
    count_of,
    nothing_at,
    passed_on,
)
from gateway.api.quiet_format import quiet_format
from gateway.api.request import (
    MAX_SESSION_CHARS,
    ChatRequest,
    Message,
    session_of,
)
from gateway.api.response_items import (
    PAGE,
    REASONING_PREFIX,
    STOPPED,
    Conversation,
    ConversationBody,
    Deleted,
    InputTokens,
    ItemsBody,
    MetadataBody,
    chained,
    events_after,
    number_of,
    page_of,
    references,
    response_of,
    since_compaction,
    stopped,
    with_ids,
    with_named,
)
from gateway.api.responses_formatter import ResponseStream, compaction_format, responses_format
from gateway.api.responses_parser import (
    Responses,
    ResponsesDraft,
    check_items,
    parse_responses,
    read_responses,
)
from gateway.api.signatures import KEY_BYTES, Signer
from gateway.api.template_fields import TEMPLATE_OWNED
from gateway.api.tool_schemas import JsonForm, ToolSchema, json_text, shown_tool
from gateway.api.utility_bodies import (
    Alive,
    DetokenizeBody,
    Detokenized,
    Health,
    MessageModel,
    ModelList,
    ModelObject,
    ModelState,
    TokenizeBody,
    Tokenized,
    Version,
    message_models,
)
