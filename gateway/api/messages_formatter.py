"""Turn events -> the bytes of Anthropic's Messages API.

Owns its events, its message and its error object, as types that are also the API's description.
Content is a list of blocks, of which one is open at a time; thinking ends with a signature. Must
not know sockets or when to send.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.api_format import AnswerHead, ApiFormat, HermaObject
from gateway.api.call_ids import to_client
from gateway.api.errors import NO_THREADS, OVERFLOW, ApiError
from gateway.api.events import (
    Annotation,
    ChoiceEvent,
    ChoiceFinished,
    ContentEvent,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    Wanted,
)
from gateway.api.signatures import Signer
from protocol.reading import read_object

_encode = msgspec.json.Encoder().encode

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_EVENT: Final = b'event: %b\ndata: {"type":"%b",%b\n\n'
_DELTA: Final = b"content_block_delta"

StopWord = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "compaction"]
_REASONS: Final[dict[str, StopWord]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    402: "billing_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_ENDS_APART: Final[Mapping[Wanted, StopWord]] = {"summary": "compaction", "nothing": "max_tokens"}
_MAX_CITED_CHARS: Final = 150
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{},]', re.DOTALL)
_CLOSER: Final = {"{": "}", "[": "]"}


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str
    citations: list[dict[str, Any]] | None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning; clients send it back with its signature."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call for the client to make."""

    id: str
    name: str
    input: dict[str, Any]


class CompactionBlock(msgspec.Struct, tag_field="type", tag="compaction"):
    """A summary of the conversation, for the client to send in its place; null if the model wrote
    none.
    """

    content: str | None


AnswerBlock = ThinkingBlock | TextBlock | ToolUseBlock | CompactionBlock
BlockKind = Literal["thinking", "text", "tool_use", "compaction"]


class MessageUsage(msgspec.Struct):
    """Counts of tokens. `input_tokens` leaves out the prompt tokens that were found in a cache.
    `is_estimate`: the upstream did not report counts.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    is_estimate: bool | UnsetType = UNSET

    @staticmethod
    def of(usage: Usage | None, wanted: Wanted = "answer") -> "MessageUsage":
        if usage is None:
            return MessageUsage(0, 0, 0)
        rest = usage.prompt_tokens - usage.cached_tokens
        written = 0 if wanted == "nothing" else usage.completion_tokens
        counted = MessageUsage(rest, written, usage.cached_tokens)
        counted.is_estimate = usage.is_estimate or UNSET
        return counted


class ContextManagement(msgspec.Struct):
    """The edits of the context that changed something."""

    applied_edits: Sequence[dict[str, Any]]


class MessageObject(msgspec.Struct):
    """A whole answer, and the beginning of a streamed one."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopWord | None
    stop_sequence: str | None
    usage: MessageUsage
    context_management: ContextManagement | UnsetType = UNSET
    herma: HermaObject | UnsetType = UNSET


class ErrorDetails(msgspec.Struct):
    """The code on which clients act: after this code the SDK's tool runner sends whole
    conversations.
    """

    error_code: str
    unsupported: list[str]


class MessageErrorObject(msgspec.Struct):
    """The error in the form of the Messages API."""

    type: str
    message: str
    details: ErrorDetails | UnsetType = UNSET


class MessageError(msgspec.Struct):
    """The body of every answer that is not a success."""

    type: Literal["error"]
    error: MessageErrorObject
    request_id: str


class TokenCount(msgspec.Struct):
    """The tokens of a prompt."""

    input_tokens: int


def messages_format(
    signer: Signer,
    request_id: str,
    *,
    shows_thinking: bool = True,
    context_edits: Sequence[dict[str, Any]] | None = None,
    wanted: Wanted = "answer",
) -> ApiFormat:
    """The Messages API for one request, whose message has the digits of `request_id`. Clients that
    do not ask for thinking (`shows_thinking`) take the first block for the answer, so reasoning of
    the model is left out. `context_edits` are reported if the client asked for some. `wanted` is
    the content of the message: the whole answer, the text of a summary alone, or nothing.
    """
    context = UNSET if context_edits is None else ContextManagement(context_edits)
    stream = MessageStream if wanted == "answer" else ApartStream
    return ApiFormat(
        name="messages",
        id_prefix="msg_",
        streamed=lambda head: stream(
            head, signer, request_id, shows_thinking=shows_thinking, context=context, wanted=wanted
        ),
        whole=lambda head: MessageBuilder(
            head, signer, shows_thinking=shows_thinking, context=context, wanted=wanted
        ),
        error_body=lambda error: message_error(error, request_id),
        id_suffix=request_id.partition("_")[2],
    )


def message_error(error: ApiError, request_id: str) -> bytes:
    """`error` in the shape of this API."""
    kind = _ERROR_TYPES.get(error.status, "api_error")
    details = ErrorDetails(NO_THREADS, ["thread"]) if error.code == NO_THREADS else UNSET
    shown = MessageErrorObject(kind, _message_of(error), details)
    return _encode(MessageError("error", shown, request_id))


def _message_of(error: ApiError) -> str:
    """The error's text, with the words on which Claude Code compacts its history."""
    if error.code != OVERFLOW:
        return error.message
    if error.overflow is not None:
        window, tokens = error.overflow
        return f"prompt is too long: {tokens} tokens > {window} maximum"
    text = error.message
    return text if "prompt is too long" in text else f"prompt is too long: {text}"


def _event(name: bytes, rest: bytes) -> bytes:
    """`rest` is the JSON of the fields behind the type, with the closing brace."""
    return _EVENT % (name, name, rest)


def _block_event(name: bytes, index: int, rest: bytes = b"}") -> bytes:
    return _event(name, b'"index":%d%b' % (index, rest))


class MessageStream:
    """A `StreamFormatter`. Its only choice is the first."""

    def __init__(
        self,
        head: AnswerHead,
        signer: Signer,
        request_id: str,
        *,
        shows_thinking: bool = True,
        context: ContextManagement | UnsetType = UNSET,
        wanted: Wanted = "answer",
    ) -> None:
        self._context = context
        self._wanted = wanted
        self._shows_thinking = shows_thinking
        self._head = head
        self._signer = signer
        self._request_id = request_id
        self._started: Started | None = None
        self._usage: Usage | None = None
        self._finished: ChoiceFinished | None = None
        self._num_blocks = 0
        self._open: BlockKind | None = None
        self._has_arguments = False
        self._is_refusal = False
        self._thoughts: list[str] = []

    def head(self, num_choices: int = 1) -> bytes:  # noqa: ARG002 - this API has one choice
        """The message without content, with the prompt's tokens as far as they are known."""
        started = self._started
        usage = MessageUsage(0, 0, 0)
        if started is not None:
            rest = max(0, started.prompt_tokens - started.cached_tokens)
            usage = MessageUsage(rest, 0, started.cached_tokens)
        message = MessageObject(
            self._head.id, "message", "assistant", self._head.model, [], None, None, usage
        )
        return _event(b"message_start", b'"message":' + _encode(message) + b"}")

    def keep_alive(self) -> bytes:
        """See `StreamFormatter`."""
        return _PING

    def format(self, event: ChoiceEvent) -> bytes:
        """See `StreamFormatter`."""
        match event:
            case TextDelta():
                self._is_refusal = self._is_refusal or event.is_refusal
                said = self._text(event.text) if event.text else b""
                return said + self._cited(event.annotations)
            case ReasoningDelta():
                return self._thinking(event.text) if self._shows_thinking else b""
            case ToolCallArguments():
                self._has_arguments = self._has_arguments or bool(event.text)
                return self._delta(b"input_json_delta", b"partial_json", event.text)
            case ToolCallStart():
                call = ToolUseBlock(to_client(event.id), event.name, {})
                self._has_arguments = False
                return self._begin("tool_use", call)
            case ToolCallEnd():
                return self._close()
            case ChoiceFinished():
                self._finished = event
                return self._close()
            case Usage():
                self._usage = event
            case Started():
                self._started = event
            case _:
                assert_never(event)
        return b""

    def error(self, error: ApiError) -> bytes:
        """See `StreamFormatter`."""
        return b"event: error\ndata: " + message_error(error, self._request_id) + b"\n\n"

    def done(self) -> bytes:
        """The end of the message, with its reason and the usage."""
        closing = self._close()
        rest: dict[str, object] = {
            "delta": _stop(self._finished, self._wanted, is_refusal=self._is_refusal),
            "usage": MessageUsage.of(self._usage, self._wanted),
        }
        if self._context is not UNSET:
            rest["context_management"] = self._context
        if self._started is not None:
            rest["herma"] = HermaObject.of(self._started, self._usage)
        return (
            closing
            + _event(b"message_delta", _encode(rest)[1:])
            + b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        )

    def _text(self, text: str) -> bytes:
        opening = b"" if self._open == "text" else self._begin("text", TextBlock(""))
        return opening + self._delta(b"text_delta", b"text", text)

    def _cited(self, annotations: Sequence[Annotation]) -> bytes:
        """The citations of the open text."""
        deltas = [
            b',"delta":{"type":"citations_delta","citation":%b}}' % _encode(one)
            for one in _citations(annotations)
            if self._open == "text"
        ]
        return b"".join(_block_event(_DELTA, self._num_blocks, delta) for delta in deltas)

    def _thinking(self, text: str) -> bytes:
        opening = b""
        if self._open != "thinking":
            opening = self._begin("thinking", ThinkingBlock("", ""))
        self._thoughts.append(text)
        return opening + self._delta(b"thinking_delta", b"thinking", text)

    def _begin(self, kind: BlockKind, block: AnswerBlock) -> bytes:
        closing = self._close()
        self._open = kind
        rest = b',"content_block":' + _encode(block) + b"}"
        return closing + _block_event(b"content_block_start", self._num_blocks, rest)

    def _delta(self, kind: bytes, field: bytes, text: str) -> bytes:
        rest = b',"delta":{"type":"%b","%b":%b}}' % (kind, field, _encode(text))
        return _block_event(_DELTA, self._num_blocks, rest)

    def _close(self) -> bytes:
        """End the open block, if there is one."""
        if self._open is None:
            return b""
        last = b""
        if self._open == "thinking":
            signature = self._signer.signature("".join(self._thoughts))
            self._thoughts.clear()
            last = self._delta(b"signature_delta", b"signature", signature)
        elif self._open == "tool_use" and not self._has_arguments:
            last = self._delta(b"input_json_delta", b"partial_json", "{}")
        closing = last + _block_event(b"content_block_stop", self._num_blocks)
        self._open = None
        self._num_blocks += 1
        return closing


class ApartStream(MessageStream):
    """A `StreamFormatter` of what is no answer: a summary of the conversation, or nothing."""

    _summary: str = ""

    def format(self, event: ChoiceEvent) -> bytes:
        """See `StreamFormatter`."""
        if isinstance(event, TextDelta):
            self._summary += "" if event.is_refusal else event.text
        elif isinstance(event, ChoiceFinished):
            return self._summed() if self._wanted == "summary" else b""
        elif isinstance(event, Usage | Started):
            return super().format(event)
        return b""

    def _summed(self) -> bytes:
        """The summary, which clients take from one delta."""
        begun = self._begin("compaction", CompactionBlock(None))
        content = _encode(self._summary or None)
        delta = b',"delta":{"type":"compaction_delta","content":%b}}' % content
        return begun + _block_event(_DELTA, self._num_blocks, delta) + self._close()


def _citations(annotations: Sequence[Annotation]) -> list[dict[str, Any]]:
    """Pages of the web as citations. The API has no place for files of other servers, nor for the
    part of the text that refers to a page.
    """
    return [
        {
            "type": "web_search_result_location",
            "cited_text": _text_in(one, "content")[:_MAX_CITED_CHARS],
            "encrypted_index": "",
            "title": _text_in(one, "title"),
            "url": _text_in(one, "url"),
        }
        for one in annotations
        if one["type"] == "url_citation"
    ]


def _text_in(annotation: Annotation, name: str) -> str:
    return text if isinstance(text := annotation.get(name), str) else ""


def _stop(
    finished: ChoiceFinished | None, wanted: Wanted, *, is_refusal: bool
) -> dict[str, str | None]:
    """Why the message ended. `is_refusal`: by its text the model declines to answer."""
    if wanted != "answer":
        return {"stop_reason": _ENDS_APART[wanted], "stop_sequence": None}
    if finished is None:
        return {"stop_reason": "end_turn", "stop_sequence": None}
    if is_refusal and finished.reason == "stop":
        return {"stop_reason": "refusal", "stop_sequence": None}
    if finished.stop is not None and finished.reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop}
    return {"stop_reason": _REASONS[finished.reason], "stop_sequence": None}


class MessageBuilder:
    """A `BodyBuilder`: the message in one piece."""

    def __init__(
        self,
        head: AnswerHead,
        signer: Signer,
        *,
        shows_thinking: bool = True,
        context: ContextManagement | UnsetType = UNSET,
        wanted: Wanted = "answer",
    ) -> None:
        self._context = context
        self._wanted = wanted
        self._shows_thinking = shows_thinking
        self._head = head
        self._signer = signer
        self._blocks: list[tuple[Literal["thinking", "text"] | ToolCallStart, list[str]]] = []
        self._cited: dict[int, list[dict[str, Any]]] = {}
        self._finished: ChoiceFinished | None = None
        self._is_refusal = False

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`."""
        match event:
            case TextDelta():
                self._add_text(event)
            case ReasoningDelta():
                if self._shows_thinking:
                    self._last("thinking").append(event.text)
            case ToolCallStart():
                self._blocks.append((event, []))
            case ToolCallArguments():
                self._blocks[-1][1].append(event.text)
            case ToolCallEnd():
                pass  # the block's text is complete
            case ChoiceFinished():
                self._finished = event
            case _:
                assert_never(event)

    def _add_text(self, event: TextDelta) -> None:
        if event.is_refusal and self._wanted == "summary":
            return  # a summary that the model declines to write is none
        self._is_refusal = self._is_refusal or event.is_refusal
        if event.text:
            self._last("text").append(event.text)
        if self._blocks and self._blocks[-1][0] == "text":
            cited = self._cited.setdefault(len(self._blocks) - 1, [])
            cited += _citations(event.annotations)

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """See `BodyBuilder`."""
        stop = _stop(self._finished, self._wanted, is_refusal=self._is_refusal)
        message = MessageObject(
            id=self._head.id,
            type="message",
            role="assistant",
            model=self._head.model,
            content=self._content(),
            stop_reason=None,
            stop_sequence=None,
            usage=MessageUsage.of(usage, self._wanted),
            context_management=self._context,
            herma=UNSET if started is None else HermaObject.of(started, usage),
        )
        fields = msgspec.structs.asdict(message)
        given = {name: value for name, value in fields.items() if value is not UNSET}
        return _encode({**given, **stop})

    def _content(self) -> list[AnswerBlock]:
        if self._wanted == "nothing":
            return []
        if self._wanted == "summary":
            said = [text for kind, texts in self._blocks for text in texts if kind == "text"]
            return [CompactionBlock("".join(said) or None)]
        return [
            self._block(kind, "".join(texts), self._cited.get(at))
            for at, (kind, texts) in enumerate(self._blocks)
        ]

    def _last(self, kind: Literal["thinking", "text"]) -> list[str]:
        if not self._blocks or self._blocks[-1][0] != kind:
            self._blocks.append((kind, []))
        return self._blocks[-1][1]

    def _block(
        self,
        kind: Literal["thinking", "text"] | ToolCallStart,
        text: str,
        cited: list[dict[str, Any]] | None,
    ) -> AnswerBlock:
        """A whole block of the message. If the arguments of a call were cut short, their complete
        members stay, as clients of streams have them too: the last block must show that a call was
        cut.
        """
        if kind == "thinking":
            return ThinkingBlock(text, self._signer.signature(text))
        if kind == "text":
            return TextBlock(text, cited or None)
        arguments = read_object(text or "{}")
        if arguments is None:
            arguments = read_object(_whole_part(text)) or {}
        return ToolUseBlock(to_client(kind.id), kind.name, arguments)


def _whole_part(text: str) -> str:
    """JSON that was cut short, without the member or item in which it breaks off, and closed."""
    end, closers = 0, ""
    opened: list[str] = []
    for token in _JSON_TOKEN.finditer(text):
        if (mark := token[0]) in _CLOSER:
            opened.append(_CLOSER[mark])
        elif mark in "]}" and opened:
            opened.pop()
        elif mark != ",":
            continue
        end = token.start() if mark == "," else token.end()
        closers = "".join(reversed(opened))
    return text[:end] + closers
