"""Turn events -> the bytes of the OpenAI chat API.

Owns the chunk and the completion object, and Server-Sent Event framing. What a token makes (text,
a thought, arguments) is a template filled in: a prefix escaped once, and the delta's own JSON, 0.2
us. Must not know sockets, heads or when to speak.
"""

from collections.abc import Mapping
from typing import Any, Final, assert_never

import msgspec

from gateway.api.api_format import AnswerHead, Dialect
from gateway.api.errors import ApiError
from gateway.api.events import (
    ChoiceEvent,
    ContentEvent,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

_RareEvent = ToolCallStart | ToolCallEnd | Finished | Usage | Started

DONE: Final = b"data: [DONE]\n\n"
CHUNK_END: Final = b"}\n\n"
"""Of each event but that one."""

_encode = msgspec.json.Encoder().encode

_AFTER_TEXT: Final = b'},"logprobs":null,"finish_reason":null}]}\n\n'
_BEFORE_TEXT: Final = b'"choices":[{"index":%d,"delta":{"content":'
_BEFORE_THOUGHTS: Final = b'"choices":[{"index":%d,"delta":{"reasoning_content":'
_BETWEEN_THOUGHTS: Final = b',"reasoning":'
_ROLE: Final = (
    b'"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
    b'"finish_reason":null}]}\n\n'
)
_FINISHED: Final = b'"choices":[{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"}]}\n\n'
_BEFORE_ARGUMENTS: Final = (
    b'"choices":[{"index":%d,"delta":{"tool_calls":[{"index":%d,"function":{"arguments":'
)
_AFTER_ARGUMENTS: Final = b"}}]" + _AFTER_TEXT


class ChunkFormatter:
    """The SSE bytes of one streamed answer.

    `created` is in Unix seconds. With `include_usage` a `Usage` event becomes the last chunk
    (`choices: []`, and a `herma` object that says who answered), else it is dropped.
    """

    __slots__ = (
        "_before_arguments",
        "_before_first_text",
        "_before_text",
        "_before_thoughts",
        "_envelope",
        "_finished",
        "_include_usage",
        "_num_choices",
        "_started",
    )

    def __init__(
        self, completion_id: str, created: int, model: str, *, include_usage: bool = False
    ) -> None:
        head = {
            "id": completion_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._envelope = b"data: " + _encode(head)[:-1] + b","
        self._include_usage = include_usage
        self._started: Started | None = None
        self._num_choices = 1
        self._finished: set[int] = set()
        self._before_text = _Beginnings(self._envelope, _BEFORE_TEXT)
        self._before_first_text = self._before_text[0]
        self._before_thoughts = _Beginnings(self._envelope, _BEFORE_THOUGHTS)
        self._before_arguments = _Beginnings(self._envelope, _BEFORE_ARGUMENTS)

    def head(self, num_choices: int = 1) -> bytes:
        """The role chunk of every choice: role assistant, content ""."""
        self._num_choices = num_choices
        return b"".join([self._envelope + _ROLE % index for index in range(num_choices)])

    def keep_alive(self) -> bytes:
        """A chunk that says nothing: clients do not count SSE comments as life, and many break
        on `choices: []`. It speaks for a choice that goes on; b"" if there is none."""
        going_on = (index for index in range(self._num_choices) if index not in self._finished)
        index = next(going_on, None)
        return b"" if index is None else self.format(TextDelta(index, ""))

    def format(self, event: ChoiceEvent) -> bytes:
        """The bytes for `event`; b"" where the client is told nothing (Started, unasked usage)."""
        # These three are what nearly every token is; a `match` would cost more than they do.
        if type(event) is TextDelta:
            if event.logprobs is not None:
                return self._scored(event)
            # Most answers have one choice.
            before = self._before_text[event.index] if event.index else self._before_first_text
            return before + _encode(event.text) + _AFTER_TEXT
        if type(event) is ReasoningDelta:
            # Under both names, as in `_reasoning`.
            thought = _encode(event.text)
            before = self._before_thoughts[event.index]
            return before + thought + _BETWEEN_THOUGHTS + thought + _AFTER_TEXT
        if type(event) is ToolCallArguments:
            before = self._before_arguments[event.index, event.call_index]
            return before + _encode(event.text) + _AFTER_ARGUMENTS
        return self._rare(event)

    def _rare(self, event: _RareEvent) -> bytes:
        match event:
            case ToolCallStart():
                call = {"index": event.call_index, **_tool_call(event, "")}
                return self._choice(event.index, {"tool_calls": [call]})
            case ToolCallEnd():
                return b""  # clients join the arguments of one index until another one begins
            case Finished():
                self._finished.add(event.index)
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
        """An SSE error event; no [DONE] may follow."""
        return b"data: " + error.body() + b"\n\n"

    def done(self) -> bytes:
        """`data: [DONE]`."""
        return DONE

    def _scored(self, event: TextDelta) -> bytes:
        logprobs = _logprobs(event.logprobs or ())
        return self._choice(event.index, {"content": event.text}, logprobs=logprobs)

    def _choice(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        logprobs: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._envelope + b'"choices":' + _encode([choice]) + b"}\n\n"


class _Beginnings(dict[int | tuple[int, int], bytes]):
    """What stands before a delta of a choice, made when it is needed: `envelope`, and `template`
    with the choice's index, or with that and the call's.
    """

    def __init__(self, envelope: bytes, template: bytes) -> None:
        super().__init__()
        self._envelope = envelope
        self._template = template

    def __missing__(self, index: int | tuple[int, int]) -> bytes:
        before = self[index] = self._envelope + self._template % index
        return before


class CompletionBuilder:
    """A `BodyBuilder`: the body of one answer that is not streamed."""

    __slots__ = ("_choices", "_head")

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._choices: dict[int, _Choice] = {}

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`."""
        choice = self._choices.get(event.index)
        if choice is None:
            choice = self._choices[event.index] = _Choice()
        match event:
            case TextDelta():
                choice.texts.append(event.text)
                if event.logprobs is not None:
                    choice.logprobs = [*(choice.logprobs or ()), *event.logprobs]
            case ReasoningDelta():
                choice.thoughts.append(event.text)
            case Finished():
                choice.reason = event.reason
            case ToolCallStart():
                choice.calls.append(_Call(event))
            case ToolCallArguments():
                choice.calls[event.call_index].texts.append(event.text)
            case ToolCallEnd():
                pass  # its text is complete
            case _:
                assert_never(event)

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """See `BodyBuilder`. `content` is null where there are only tool calls."""
        body: dict[str, Any] = {
            "id": self._head.id,
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "choices": [self._choices[index].as_dict(index) for index in sorted(self._choices)],
        }
        if usage is not None:
            body["usage"] = usage_object(usage)
        if started is not None:
            cached = usage.cached_tokens if usage is not None else started.cached_tokens
            body["herma"] = herma_object(started, cached)
        return _encode(body)


class _Choice:
    """One choice as it grows."""

    __slots__ = ("calls", "logprobs", "reason", "texts", "thoughts")

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.texts: list[str] = []
        self.calls: list[_Call] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.reason: str | None = None

    def as_dict(self, index: int) -> dict[str, Any]:
        """The choice in the API's shape."""
        text = "".join(self.texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls and not text else text,
            "refusal": None,
        }
        if self.thoughts:
            message |= _reasoning("".join(self.thoughts))
        if self.calls:
            message["tool_calls"] = [call.as_dict() for call in self.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": None if self.logprobs is None else _logprobs(self.logprobs),
            "finish_reason": self.reason,
        }


class _Call:
    """One call as its arguments come."""

    def __init__(self, start: ToolCallStart) -> None:
        self._start = start
        self.texts: list[str] = []

    def as_dict(self) -> dict[str, Any]:
        """The call in the API's shape."""
        return _tool_call(self._start, "".join(self.texts))


def _reasoning(text: str) -> dict[str, Any]:
    """Under both names that clients read: vLLM's older one and OpenRouter's."""
    return {"reasoning_content": text, "reasoning": text}


def _tool_call(start: ToolCallStart, arguments: str) -> dict[str, Any]:
    function = {"name": start.name, "arguments": arguments}
    return {"id": start.id, "type": "function", "function": function}


def _logprobs(entries: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}


def usage_chunk(envelope: bytes, usage: Usage, started: Started | None) -> bytes:
    """The last chunk of a stream, for those who ask; `envelope` is its beginning, up to a comma."""
    rest: dict[str, Any] = {"choices": [], "usage": usage_object(usage)}
    if started is not None:
        rest["herma"] = herma_object(started, usage.cached_tokens)
    return envelope + _encode(rest)[1:] + b"\n\n"


def usage_object(usage: Usage) -> dict[str, Any]:
    """What the turn cost, with the details that clients look for."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def herma_object(started: Started, cached_tokens: int) -> dict[str, Any]:
    """Who answered, and from how much of its cache."""
    return {
        "worker": started.worker,
        "cached_tokens": cached_tokens,
        "route": started.route,
        "served_by": started.served_by,
    }


def with_herma(chunk: bytes, started: Started) -> bytes:
    """`chunk`, an event of any of our APIs, with who answers in it; b"" stays b""."""
    herma = _encode(herma_object(started, started.cached_tokens))
    return chunk and chunk[: -len(CHUNK_END)] + b',"herma":' + herma + CHUNK_END


CHAT: Final = Dialect(
    id_prefix="chatcmpl-",
    streamed=lambda head: ChunkFormatter(
        head.id, head.created, head.model, include_usage=head.include_usage
    ),
    whole=CompletionBuilder,
)
