"""Turn events -> the bytes of the OpenAI chat API.

Owns the chunk and the completion object. Text, reasoning and arguments, which are nearly all
tokens, fill a template: a prefix escaped once, and the delta's own JSON, 0.2 us. All else is
encoded from the types below, which are also the API's description. Must not know sockets or when
to send.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.api_format import (
    DONE,
    AnswerHead,
    ApiFormat,
    HermaObject,
    UsageObject,
    error_chunk,
    usage_chunk,
)
from gateway.api.custom_tools import input_of
from gateway.api.errors import ApiError
from gateway.api.events import (
    ChoiceEvent,
    ChoiceFinished,
    ContentEvent,
    ReasoningDelta,
    Started,
    StopReason,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

NO_CUSTOMS: Final[Mapping[str, bool]] = {}

_RareEvent = ToolCallStart | ToolCallEnd | ChoiceFinished | Usage | Started

_encode = msgspec.json.Encoder().encode

_AFTER_TEXT: Final = b'},"logprobs":null,"finish_reason":null}]}\n\n'
_BEFORE_TEXT: Final = b'"choices":[{"index":%d,"delta":{"content":'
_BEFORE_REASONING: Final = b'"choices":[{"index":%d,"delta":{"reasoning_content":'
_BETWEEN_REASONING: Final = b',"reasoning":'
_ROLE: Final = (
    b'"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
    b'"finish_reason":null}]}\n\n'
)
_FINISHED: Final = b'"choices":[{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"}]}\n\n'
_BEFORE_ARGUMENTS: Final = (
    b'"choices":[{"index":%d,"delta":{"tool_calls":[{"index":%d,"function":{"arguments":'
)
_AFTER_ARGUMENTS: Final = b"}}]" + _AFTER_TEXT


class FunctionCall(msgspec.Struct):
    """The function that a call names; `arguments` is JSON as text."""

    name: str
    arguments: str


class CustomCall(msgspec.Struct):
    """`input` is the text for a custom tool."""

    name: str
    input: str


class ToolCallObject(msgspec.Struct):
    """A call for the client to make. One of a custom tool that the client sent without a wrapper
    has both forms: Cursor reads the name of every call in `function` (codex-proxy#708).
    """

    id: str
    type: Literal["function", "custom"]
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET


class ChatLogprobs(msgspec.Struct):
    """One entry per token of the content."""

    content: Sequence[TokenLogprob]
    refusal: None


class ChatMessage(msgspec.Struct):
    """The answer. Reasoning has both names that clients read: vLLM's older one and OpenRouter's."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One of `n` answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: StopReason | UnsetType


class ChatCompletion(msgspec.Struct):
    """A chat answered in one piece. OpenRouter's SDKs refuse one without a `system_fingerprint`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject | UnsetType
    system_fingerprint: None = None
    herma: HermaObject | UnsetType = UNSET


class FunctionDelta(msgspec.Struct):
    """A further part of a call; the name comes once per call."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomDelta(msgspec.Struct):
    """A further part of a call of a custom tool; the name comes once per call."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCallPart(msgspec.Struct, kw_only=True):
    """A further part of the call `index`; id and type come once per call."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    """What this chunk adds to a choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """One choice in a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: StopReason | None


class ChatChunk(msgspec.Struct):
    """The data of one event of a streamed chat; the last one has the usage and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageObject | UnsetType = UNSET
    herma: HermaObject | UnsetType = UNSET


class ChunkFormatter:
    """A `StreamFormatter`: the SSE bytes of one streamed answer.

    With `include_usage` a `Usage` event becomes the last chunk (`choices: []`, and a `herma` object
    that names the worker or provider), else it is dropped.
    """

    __slots__ = (
        "_arguments_of",
        "_before_arguments",
        "_before_reasoning",
        "_before_text",
        "_envelope",
        "_finished",
        "_include_usage",
        "_num_choices",
        "_reasoning_of",
        "_started",
        "_text_of",
    )

    def __init__(self, head: AnswerHead) -> None:
        fields = {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        self._envelope = b"data: " + _encode(fields)[:-1] + b","
        self._include_usage = head.include_usage
        self._started: Started | None = None
        self._num_choices = 1
        self._finished: frozenset[int] = frozenset()
        # The prefix of a chunk for the choice that came last, and that for the call that came last.
        self._text_of = self._reasoning_of = -1
        self._arguments_of = -1, -1
        self._before_text = self._before_reasoning = self._before_arguments = b""

    def head(self, num_choices: int = 1) -> bytes:
        """The role chunk of every choice: role assistant, content ""."""
        self._num_choices = num_choices
        return b"".join([self._envelope + _ROLE % index for index in range(num_choices)])

    def keep_alive(self) -> bytes:
        """A chunk with an empty delta of an unfinished choice; b"" if there is none. SSE comments
        do not keep clients from timing out, and many clients fail on `choices: []`.
        """
        unfinished = (index for index in range(self._num_choices) if index not in self._finished)
        index = next(unfinished, None)
        return b"" if index is None else self.format(TextDelta(index, ""))

    def format(self, event: ChoiceEvent) -> bytes:
        """See `StreamFormatter`."""
        # These three are what nearly every token is; a `match` would cost more than they do.
        if type(event) is TextDelta:
            if event.logprobs is not None:
                delta = ChatDelta(content=event.text)
                return self._choice(event.index, delta, ChatLogprobs(event.logprobs, None))
            if event.index != self._text_of:
                self._text_of = event.index
                self._before_text = self._envelope + _BEFORE_TEXT % event.index
            return self._before_text + _encode(event.text) + _AFTER_TEXT
        if type(event) is ReasoningDelta:
            if event.index != self._reasoning_of:
                self._reasoning_of = event.index
                self._before_reasoning = self._envelope + _BEFORE_REASONING % event.index
            text = _encode(event.text)
            return self._before_reasoning + text + _BETWEEN_REASONING + text + _AFTER_TEXT
        if type(event) is ToolCallArguments:
            call = event.index, event.call_index
            if call != self._arguments_of:
                self._arguments_of = call
                self._before_arguments = self._envelope + _BEFORE_ARGUMENTS % call
            return self._before_arguments + _encode(event.text) + _AFTER_ARGUMENTS
        return self._rare(event)

    def _rare(self, event: _RareEvent) -> bytes:
        match event:
            case ToolCallStart():
                function = FunctionDelta(event.name, "")
                call = ToolCallPart(
                    index=event.call_index, id=event.id, type="function", function=function
                )
                return self._choice(event.index, ChatDelta(tool_calls=[call]))
            case ToolCallEnd():
                return b""  # clients join the arguments of one index until another one begins
            case ChoiceFinished():
                self._finished |= {event.index}
                return self._envelope + _FINISHED % (event.index, event.reason.encode())
            case Usage():
                if not self._include_usage:
                    return b""
                return usage_chunk(self._envelope, event, self._started)
            case Started():
                self._started = event
                return b""
            case _:
                assert_never(event)

    def error(self, error: ApiError) -> bytes:
        """See `StreamFormatter`."""
        return error_chunk(error)

    def done(self) -> bytes:
        """See `StreamFormatter`."""
        return DONE

    def _choice(self, index: int, delta: ChatDelta, logprobs: ChatLogprobs | None = None) -> bytes:
        choice = ChatChunkChoice(index, delta, logprobs, None)
        return self._envelope + b'"choices":' + _encode([choice]) + b"}\n\n"


class CustomChunks(ChunkFormatter):
    """A `StreamFormatter` for a request with custom tools (`ChatRequest.custom_tools`). The text of
    such a call is known when its JSON is complete.
    """

    __slots__ = ("_customs", "_open")

    def __init__(self, head: AnswerHead, customs: Mapping[str, bool]) -> None:
        super().__init__(head)
        self._customs = customs
        self._open: dict[tuple[int, int], tuple[str, list[str]]] = {}

    def format(self, event: ChoiceEvent) -> bytes:
        """See `StreamFormatter`."""
        if isinstance(event, ToolCallStart) and event.name in self._customs:
            self._open[event.index, event.call_index] = event.name, []
            both = self._parts(event.name, "", named=True)
            call = ToolCallPart(index=event.call_index, id=event.id, type="custom", **both)
            return self._choice(event.index, ChatDelta(tool_calls=[call]))
        if isinstance(event, ToolCallArguments):
            found = self._open.get((event.index, event.call_index))
            if found is not None:
                found[1].append(event.text)
                return b""
        if isinstance(event, ToolCallEnd):
            found = self._open.pop((event.index, event.call_index), None)
            if found is not None:
                both = self._parts(found[0], input_of("".join(found[1])))
                call = ToolCallPart(index=event.call_index, **both)
                return self._choice(event.index, ChatDelta(tool_calls=[call]))
        return super().format(event)

    def _parts(self, name: str, text: str, *, named: bool = False) -> dict[str, Any]:
        shown = name if named else UNSET
        parts: dict[str, Any] = {"custom": CustomDelta(shown, text)}
        if self._customs[name]:
            parts["function"] = FunctionDelta(shown, text)
        return parts


class CompletionBuilder:
    """A `BodyBuilder`: the body of one answer that is not streamed. `customs` are as
    `ChatRequest.custom_tools`.
    """

    __slots__ = ("_choices", "_customs", "_head")

    def __init__(self, head: AnswerHead, customs: Mapping[str, bool] = NO_CUSTOMS) -> None:
        self._customs = customs
        self._head = head
        self._choices: dict[int, _Choice] = {}

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`."""
        choice = self._choices.get(event.index)
        if choice is None:
            choice = self._choices[event.index] = _Choice()
        if type(event) is TextDelta:
            choice.texts.append(event.text)
            if event.logprobs is not None:
                choice.logprobs = [*(choice.logprobs or ()), *event.logprobs]
            return
        match event:
            case ChoiceFinished():
                choice.reason = event.reason
            case ReasoningDelta():
                choice.reasoning.append(event.text)
            case ToolCallStart():
                choice.calls.append((event, []))
            case ToolCallArguments():
                choice.calls[event.call_index][1].append(event.text)
            case ToolCallEnd():
                pass  # the call's text is complete
            case _:
                assert_never(event)

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """See `BodyBuilder`. `content` is null where there are only tool calls."""
        return _encode(
            ChatCompletion(
                id=self._head.id,
                object="chat.completion",
                created=self._head.created,
                model=self._head.model,
                choices=[
                    self._choices[index].as_object(index, self._customs)
                    for index in sorted(self._choices)
                ],
                usage=UNSET if usage is None else UsageObject.of(usage),
                herma=UNSET if started is None else HermaObject.of(started, usage),
            )
        )


class _Choice:
    """One choice as it grows."""

    __slots__ = ("calls", "logprobs", "reason", "reasoning", "texts")

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.calls: list[tuple[ToolCallStart, list[str]]] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.reason: StopReason | UnsetType = UNSET

    def as_object(self, index: int, customs: Mapping[str, bool]) -> ChatChoice:
        text, reasoning = "".join(self.texts), "".join(self.reasoning) or UNSET
        calls = [
            _call_object(start, "".join(arguments), customs) for start, arguments in self.calls
        ]
        message = ChatMessage(
            role="assistant",
            content=None if calls and not text else text,
            refusal=None,
            reasoning_content=reasoning,
            reasoning=reasoning,
            tool_calls=calls or UNSET,
        )
        logprobs = None if self.logprobs is None else ChatLogprobs(self.logprobs, None)
        return ChatChoice(index, message, logprobs, self.reason)


def _call_object(
    start: ToolCallStart, arguments: str, customs: Mapping[str, bool]
) -> ToolCallObject:
    if start.name not in customs:
        return ToolCallObject(start.id, "function", FunctionCall(start.name, arguments))
    text = input_of(arguments)
    function = FunctionCall(start.name, text) if customs[start.name] else UNSET
    return ToolCallObject(start.id, "custom", function, CustomCall(start.name, text))


def custom_chat_format(customs: Mapping[str, bool]) -> ApiFormat:
    """The format for a request with custom tools."""
    return replace(
        CHAT_FORMAT,
        streamed=lambda head: CustomChunks(head, customs),
        whole=lambda head: CompletionBuilder(head, customs),
    )


CHAT_FORMAT: Final = ApiFormat(
    name="chat", id_prefix="chatcmpl-", streamed=ChunkFormatter, whole=CompletionBuilder
)
