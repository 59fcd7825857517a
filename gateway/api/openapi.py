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
    `may_be_unwell` the same answer may come with 503.
    """

    method: str
    summary: str
    answers: dict[str, _Struct | None]
    errors: tuple[int, ...] = ()
    takes: _Struct | None = None
    in_v1: bool = False
    error: _Struct = ErrorBody
    query: tuple[str, ...] = ()
    may_be_unwell: bool = False


def _about_stored(
    method: str,
    summary: str,
    answer: _Struct | None,
    takes: _Struct | None = None,
    query: tuple[str, ...] = (),
) -> _Operation:
    """An operation on what is stored; a response may come as a stream."""
    kinds: dict[str, _Struct | None] = {JSON: answer}
    if "stream" in query:
        kinds[EVENTS] = None
    errors = (400, *_READING, 404, 503) if takes is None else (*_TAKING, 404)
    return _Operation(method, summary, kinds, errors, takes, in_v1=True, query=query)


_STORED: Final = {
    "/responses/{name}": (
        _about_stored(
            "get",
            "A stored response, or its stream.",
            ResponseObject,
            query=("stream", "starting_after"),
        ),
        _about_stored("delete", "Delete a stored response.", Deleted),
    ),
    "/responses/{name}/cancel": (
        _about_stored("post", "End a response that runs in the background.", ResponseObject),
    ),
    "/responses/{name}/input_items": (
        _about_stored("get", "What a response was made from.", ItemList, query=_PAGED),
    ),
    "/conversations": (
        _about_stored("post", "A new conversation.", Conversation, ConversationBody),
    ),
    "/conversations/{name}": (
        _about_stored("get", "A conversation.", Conversation),
        _about_stored("post", "New metadata of a conversation.", Conversation, MetadataBody),
        _about_stored("delete", "Delete a conversation and its items.", Deleted),
    ),
    "/conversations/{name}/items": (
        _about_stored("get", "The items of a conversation.", ItemList, query=_PAGED),
        _about_stored("post", "Add items to a conversation.", ItemList, ItemsBody),
    ),
    "/conversations/{name}/items/{item}": (
        _about_stored("get", "An item.", None),
        _about_stored("delete", "Delete an item.", Conversation),
    ),
}
"""By path; one path takes several methods."""

_OPERATIONS: Final = {
    "/chat/completions": _Operation(
        "post",
        "Answer a chat.",
        {JSON: ChatCompletion, EVENTS: ChatChunk},
        _GENERATING,
        ChatBody,
        in_v1=True,
    ),
    "/completions": _Operation(
        "post",
        "Go on from raw prompts.",
        {JSON: TextCompletion, EVENTS: TextCompletion},
        _GENERATING,
        CompletionBody,
        in_v1=True,
    ),
    "/embeddings": _Operation(
        "post",
        "Embed texts.",
        {JSON: EmbeddingList},
        _GENERATING,
        EmbeddingsBody,
        in_v1=True,
    ),
    "/messages": _Operation(
        "post",
        "Answer a conversation, as Anthropic's API does.",
        {JSON: MessageObject, EVENTS: None},
        _GENERATING,
        MessagesBody,
        in_v1=True,
        error=MessageError,
    ),
    "/messages/count_tokens": _Operation(
        "post",
        "Count the tokens of a conversation.",
        {JSON: TokenCount},
        (*_TAKING, 404),
        MessagesBody,
        in_v1=True,
        error=MessageError,
    ),
    "/responses": _Operation(
        "post",
        "Answer a conversation, as OpenAI's Responses API does.",
        {JSON: ResponseObject, EVENTS: None},
        _GENERATING,
        ResponsesBody,
        in_v1=True,
    ),
    "/responses/compact": _Operation(
        "post",
        "Replace a conversation by a summary.",
        {JSON: CompactedResponse},
        _GENERATING,
        ResponsesBody,
        in_v1=True,
    ),
    "/responses/input_tokens": _Operation(
        "post",
        "Count the tokens of a response's prompt.",
        {JSON: InputTokens},
        (*_TAKING, 404),
        ResponsesBody,
        in_v1=True,
    ),
    "/tokenize": _Operation(
        "post",
        "Count the tokens of a text or a chat.",
        {JSON: Tokenized},
        (*_TAKING, 404),
        TokenizeBody,
        in_v1=True,
    ),
    "/detokenize": _Operation(
        "post",
        "Read token ids.",
        {JSON: Detokenized},
        (*_TAKING, 404),
        DetokenizeBody,
        in_v1=True,
    ),
    "/models": _Operation(
        "get",
        "The models; other fields if `anthropic-version` is sent.",
        {JSON: ModelList},
        _READING,
        in_v1=True,
    ),
    "/models/{name}": _Operation(
        "get", "One model, by any of its names.", {JSON: ModelObject}, (*_READING, 404), in_v1=True
    ),
    "/api/hello": _Operation("get", "Whether somebody is there.", {JSON: None}, (403,)),
    "/health": _Operation(
        "get",
        "Which models can answer; 503 while the gateway drains.",
        {JSON: Health},
        (403,),
        may_be_unwell=True,
    ),
    "/health/readiness": _Operation(
        "get",
        "The same; 503 also while no model can answer.",
        {JSON: Health},
        (403,),
        may_be_unwell=True,
    ),
    "/health/liveness": _Operation("get", "The process answers.", {JSON: Alive}, (403,)),
    "/health/liveliness": _Operation("get", "The same.", {JSON: Alive}, (403,)),
    "/tokenizer_info": _Operation(
        "get",
        "Special tokens and the chat template of a model.",
        {JSON: TokenizerInfo},
        (400, 401, 404, 503),
        in_v1=True,
    ),
    "/version": _Operation("get", "The gateway's version.", {JSON: Version}, (403,)),
    "/metrics": _Operation("get", "Counters for Prometheus; admins only.", {TEXT: None}, _READING),
    "/events": _Operation(
        "get", "What happens in the fleet, as it happens; admins only.", {EVENTS: None}, _READING
    ),
    "/admin/conversations": _Operation(
        "get", "What conversations have used; admins only.", {JSON: None}, _READING
    ),
    "/admin/prefixes": _Operation(
        "get",
        "What breaks the prefixes of prompts, by client; admins only.",
        {JSON: None},
        _READING,
    ),
    "/openapi.json": _Operation("get", "This description.", {JSON: None}, (403,)),
}


def openapi_document(version: str) -> dict[str, Any]:
    all_of_them = [one for operations in _by_path().values() for one in operations]
    kinds = {kind for one in all_of_them for kind in (one.takes, *one.answers.values())}
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


def _by_path() -> dict[str, tuple[_Operation, ...]]:
    return {path: (one,) for path, one in _OPERATIONS.items()} | _STORED


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, operations in _by_path().items():
        described: dict[str, Any] = {one.method: _described(one) for one in operations}
        names = [name for name in ("name", "item") if f"{{{name}}}" in path]
        if names:
            described["parameters"] = [_parameter(name, "path") for name in names]
        for prefix in ("/v1", "") if operations[0].in_v1 else ("",):
            paths[prefix + path] = described
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
        described["requestBody"] = {"required": True, "content": content}
    return described


def _schema_of(media: str, kind: _Struct | None) -> dict[str, Any]:
    if media == EVENTS and kind is not None:
        text = f"One event of the stream: a {kind.__name__} or an error, at last `[DONE]`."
        either_body = {"anyOf": [_ref(kind), _ref(ErrorBody)]}
        data = {"type": "string", "contentMediaType": JSON, "contentSchema": either_body}
        either = {"anyOf": [{"const": "[DONE]"}, data]}
        event = {"type": "object", "properties": {"data": either}, "required": ["data"]}
        return {"schema": {**event, "description": text}}
    if kind is None:
        return {"schema": {"type": "object" if media == JSON else "string"}}
    return {"schema": _ref(kind)}


def _error(status: int, kind: _Struct) -> dict[str, Any]:
    return {
        "description": _ERRORS[status],
        "content": {JSON: {"schema": _ref(kind)}},
    }
