"""The description of the HTTP API, OpenAPI 3.1.

Owns the paths, with the types that they take and answer: those that parse requests and write
answers. Must not know how anything is served.
"""

from typing import Any, Final, NamedTuple

import msgspec

from gateway.api.chat_formatter import ChatChunk, ChatCompletion
from gateway.api.chat_parser import ChatBody
from gateway.api.completions_formatter import TextCompletion
from gateway.api.completions_parser import CompletionBody
from gateway.api.embeddings import EmbeddingList, EmbeddingsBody
from gateway.api.errors import ErrorBody
from gateway.api.messages_formatter import MessageError, MessageObject, TokenCount
from gateway.api.messages_parser import MessagesBody
from gateway.api.response_items import (
    Conversation,
    ConversationBody,
    Deleted,
    InputTokens,
    ItemList,
    ItemsBody,
    MetadataBody,
)
from gateway.api.responses_formatter import CompactedResponse, ResponseObject
from gateway.api.responses_parser import ResponsesBody
from gateway.api.utility_bodies import (
    Alive,
    DetokenizeBody,
    Detokenized,
    Health,
    ModelList,
    ModelObject,
    TokenizeBody,
    Tokenized,
    TokenizerInfo,
    Version,
)

_Struct = type[msgspec.Struct]
_Answers = dict[str, _Struct | None]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"

_ERRORS: Final = {
    400: "A field of the request cannot be used; `param` names it.",
    401: "An API key is missing or unknown.",
    403: "This key, or this web page, may not do that.",
    404: "No model has that name.",
    408: "The body did not arrive.",
    413: "The body is too large.",
    415: "The body is compressed.",
    422: "Engines died while they worked on this request.",
    402: "A limit that lasts is reached, for clients that ask again after any 429.",
    429: "The queue is full or a limit is reached; retry after `retry-after`, in whole seconds.",
    500: "The gateway failed; its log has the cause.",
    502: "No provider answered, or the answer broke off.",
    503: "Nothing can serve now; retry after `retry-after`, in whole seconds.",
}

_READING: Final = (401, 403)
_TAKING: Final = (400, *_READING, 408, 413, 415, 500, 503)
_GENERATING: Final = (*_TAKING, 402, 404, 422, 429, 502)


_PAGED: Final = ("after", "limit", "order")


class _Operation(NamedTuple):
    """`answers` by media type; None for text. `query`: the names of its parameters. With
    `may_be_unwell` the same answer may come with 503, with `may_be_empty` there may be no body.
    With `in_v1` the path is also below /v1.
    """

    path: str
    method: str
    summary: str
    answers: _Answers
    errors: tuple[int, ...]
    takes: _Struct | None = None
    error: _Struct = ErrorBody
    query: tuple[str, ...] = ()
    may_be_unwell: bool = False
    may_be_empty: bool = False
    in_v1: bool = False


def _generates(
    path: str, summary: str, takes: _Struct, answers: _Answers, error: _Struct = ErrorBody
) -> _Operation:
    """An operation that a model carries out."""
    return _Operation(path, "post", summary, answers, _GENERATING, takes, error, in_v1=True)


def _counts(
    path: str, summary: str, takes: _Struct, answer: _Struct, error: _Struct = ErrorBody
) -> _Operation:
    """An operation of the gateway itself on a body."""
    errors = *_TAKING, 404
    return _Operation(path, "post", summary, {JSON: answer}, errors, takes, error, in_v1=True)


def _shows(
    path: str, summary: str, answers: _Answers, errors: tuple[int, ...] = _READING
) -> _Operation:
    """A page of the gateway."""
    return _Operation(path, "get", summary, answers, errors)


def _stored(
    path: str,
    method: str,
    summary: str,
    answer: _Struct | None,
    takes: _Struct | None = None,
    query: tuple[str, ...] = (),
) -> _Operation:
    """An operation on what is stored; a response may come as a stream."""
    answers: _Answers = {JSON: answer, EVENTS: None} if "stream" in query else {JSON: answer}
    errors = (400, *_READING, 404, 503) if takes is None else (*_TAKING, 404)
    return _Operation(path, method, summary, answers, errors, takes, query=query, in_v1=True)


_RESPONSE: Final = "/responses/{name}"
_TALK: Final = "/conversations/{name}"
_OPERATIONS: Final = (
    _generates(
        "/chat/completions",
        "Answer a chat.",
        ChatBody,
        {JSON: ChatCompletion, EVENTS: ChatChunk},
    ),
    _generates(
        "/completions",
        "Go on from raw prompts.",
        CompletionBody,
        {JSON: TextCompletion, EVENTS: TextCompletion},
    ),
    _generates("/embeddings", "Embed texts.", EmbeddingsBody, {JSON: EmbeddingList}),
    _generates(
        "/messages",
        "Answer a conversation, as Anthropic's API does.",
        MessagesBody,
        {JSON: MessageObject, EVENTS: None},
        MessageError,
    ),
    _counts(
        "/messages/count_tokens",
        "Count the tokens of a conversation.",
        MessagesBody,
        TokenCount,
        MessageError,
    ),
    _generates(
        "/responses",
        "Answer a conversation, as OpenAI's Responses API does.",
        ResponsesBody,
        {JSON: ResponseObject, EVENTS: None},
    ),
    _generates(
        "/responses/compact",
        "Replace a conversation by a summary.",
        ResponsesBody,
        {JSON: CompactedResponse},
    ),
    _counts(
        "/responses/input_tokens",
        "Count the tokens of a response's prompt.",
        ResponsesBody,
        InputTokens,
    ),
    _counts("/tokenize", "Count the tokens of a text or a chat.", TokenizeBody, Tokenized),
    _counts("/detokenize", "Read token ids.", DetokenizeBody, Detokenized),
    _shows(
        "/models", "The models; other fields if `anthropic-version` is sent.", {JSON: ModelList}
    )._replace(in_v1=True),
    _shows(
        "/models/{name}", "One model, by any of its names.", {JSON: ModelObject}, (*_READING, 404)
    )._replace(in_v1=True),
    _shows("/api/hello", "Whether somebody is there.", {JSON: None}, (403,)),
    _shows(
        "/health", "Which models can answer; 503 while the gateway drains.", {JSON: Health}, (403,)
    )._replace(may_be_unwell=True),
    _shows(
        "/health/readiness",
        "The same; 503 also while no model can answer.",
        {JSON: Health},
        (403,),
    )._replace(may_be_unwell=True),
    _shows("/health/liveness", "The process answers.", {JSON: Alive}, (403,)),
    _shows("/health/liveliness", "The same.", {JSON: Alive}, (403,)),
    _shows("/livez", "As /health/liveness.", {JSON: Alive}, (403,)),
    _shows("/readyz", "As /health/readiness.", {JSON: Health}, (403,))._replace(may_be_unwell=True),
    _shows("/healthz", "As /health.", {JSON: Health}, (403,))._replace(may_be_unwell=True),
    _shows("/ping", "As /health.", {JSON: Health}, (403,))._replace(may_be_unwell=True),
    _shows(
        "/tokenizer_info",
        "Special tokens and the chat template of a model.",
        {JSON: TokenizerInfo},
        (400, 401, 404, 503),
    )._replace(in_v1=True),
    _shows("/version", "The gateway's version.", {JSON: Version}, (403,)),
    _shows("/metrics", "Counters for Prometheus; admins only.", {TEXT: None}),
    _shows("/events", "What happens in the fleet, as it happens; admins only.", {EVENTS: None}),
    _shows("/admin/conversations", "What conversations have used; admins only.", {JSON: None}),
    _shows(
        "/admin/prefixes",
        "What breaks the prefixes of prompts, by client; admins only.",
        {JSON: None},
    ),
    _shows("/openapi.json", "This description.", {JSON: None}, (403,)),
    _stored(
        _RESPONSE,
        "get",
        "A stored response, or its stream.",
        ResponseObject,
        query=("stream", "starting_after"),
    ),
    _stored(_RESPONSE, "delete", "Delete a stored response.", Deleted),
    _stored(
        f"{_RESPONSE}/cancel",
        "post",
        "End a response that runs in the background.",
        ResponseObject,
    ),
    _stored(
        f"{_RESPONSE}/input_items", "get", "What a response was made from.", ItemList, query=_PAGED
    ),
    _stored(
        "/conversations", "post", "A new conversation.", Conversation, ConversationBody
    )._replace(may_be_empty=True),
    _stored(_TALK, "get", "A conversation.", Conversation),
    _stored(_TALK, "post", "New metadata of a conversation.", Conversation, MetadataBody),
    _stored(_TALK, "delete", "Delete a conversation and its items.", Deleted),
    _stored(f"{_TALK}/items", "get", "The items of a conversation.", ItemList, query=_PAGED),
    _stored(f"{_TALK}/items", "post", "Add items to a conversation.", ItemList, ItemsBody),
    _stored(f"{_TALK}/items/{{item}}", "get", "An item.", None),
    _stored(f"{_TALK}/items/{{item}}", "delete", "Delete an item.", Conversation),
)


def openapi_document(version: str) -> dict[str, Any]:
    """The description of the API in OpenAPI 3.1, as `version` of Herma serves it."""
    kinds = {kind for one in _OPERATIONS for kind in (one.takes, *one.answers.values())}
    named = sorted((kind for kind in kinds if kind is not None), key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(
        [*named, ErrorBody, MessageError], ref_template=_REF
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Herma", "version": version},
        "security": [{}, {"key": []}],
        "paths": _paths(),
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


_REF: Final = "#/components/schemas/{name}"


def _ref(kind: _Struct) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for one in _OPERATIONS:
        names = [name for name in ("name", "item") if f"{{{name}}}" in one.path]
        for prefix in ("/v1", "") if one.in_v1 else ("",):
            described = paths.setdefault(prefix + one.path, {})
            described[one.method] = _described(one)
            if names:
                described["parameters"] = [_parameter(name, "path") for name in names]
    return paths


_QUERY: Final[dict[str, dict[str, Any]]] = {
    "stream": {"type": "boolean"},
    "starting_after": {"type": "integer", "minimum": 0},
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "order": {"enum": ["asc", "desc"]},
}


def _parameter(name: str, place: str) -> dict[str, Any]:
    schema = _QUERY.get(name, {"type": "string", "minLength": 1})
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _described(operation: _Operation) -> dict[str, Any]:
    answers = {media: _schema_of(media, kind) for media, kind in operation.answers.items()}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "The answer.", "content": answers},
            **{str(one): _error(one, operation.error) for one in sorted(operation.errors)},
        },
    }
    if operation.may_be_unwell:
        described["responses"]["503"] = {"description": "Not now.", "content": answers}
    if operation.query:
        described["parameters"] = [_parameter(name, "query") for name in operation.query]
    if operation.takes is not None:
        content = {JSON: {"schema": _ref(operation.takes)}}
        described["requestBody"] = {"required": not operation.may_be_empty, "content": content}
    return described


def _schema_of(media: str, kind: _Struct | None) -> dict[str, Any]:
    if media == EVENTS and kind is not None:
        text = f"One event of the stream: a {kind.__name__} or an error, at last `[DONE]`."
        either_body = {"anyOf": [_ref(kind), _ref(ErrorBody)]}
        data = {"type": "string", "contentMediaType": JSON, "contentSchema": either_body}
        either = {"anyOf": [{"const": "[DONE]"}, data]}
        event = {"type": "object", "properties": {"data": either}, "required": ["data"]}
        return {"schema": {**event, "description": text}}
    if media == EVENTS:
        event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
        return {
            "schema": {**event, "description": "One event of the stream, with JSON as its data."}
        }
    if kind is None:
        return {"schema": {"type": "object" if media == JSON else "string"}}
    return {"schema": _ref(kind)}


def _error(status: int, kind: _Struct) -> dict[str, Any]:
    return {
        "description": _ERRORS[status],
        "content": {JSON: {"schema": _ref(kind)}},
    }
