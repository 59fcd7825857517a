"""Chat events: a provider's chat answer, parsed into the events of a turn.

Owns how chunks and whole answers are read for the APIs that cannot pass them on as bytes. The
stream was checked before: every event is a JSON object, and none is an error. Must not know those
APIs.
"""

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from gateway.api import (
    ApiError,
    Failed,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    Usage,
    connection_lost,
)
from gateway.upstream.error_words import error_of
from gateway.upstream.sse import data_of, split_events
from gateway.upstream.usage import usage_of

_DONE: Final = b"[DONE]"
_CALLS: Final = frozenset({"tool_calls", "function_call"})
_decode: Final = msgspec.json.Decoder().decode


class _Call:
    """A tool call while its deltas arrive. `is_live`: its arguments are passed on at once."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.is_live = False


class ChatEvents:
    """Takes the events of a turn. Those of a worker pass unchanged to `emit`; a provider's answer
    is emitted as the same kinds of events. Only the first choice counts.

    The first tool call is passed on as it arrives. Further calls, and text after a call, wait for
    the end, because providers may interleave several calls.
    """

    def __init__(self, emit: Callable[[TurnEvent], None]) -> None:
        self._emit = emit
        self._calls: dict[int, _Call] = {}
        self._late_text: list[str] = []
        self._reason = "stop"
        self._stop: str | None = None
        self._usage: Usage | None = None
        self._has_answer = False

    def take(self, event: TurnEvent) -> None:
        """Read an event; never raises, and never waits."""
        match event:
            case UpstreamChunk():
                for one in split_events(event.data):
                    self._take_data(data_of(one))
            case UpstreamBody():
                self._take_body(event)
            case _:
                self._emit(event)

    def _take_data(self, data: bytes) -> None:
        if data.startswith(_DONE):
            self._end()
            return
        chunk = _object(data)
        if chunk is None:
            if data.strip():
                self._emit(Failed(connection_lost()))
            return
        self._has_answer = True
        if isinstance(chunk.get("usage"), dict):
            self._usage = usage_of(data) or self._usage
        for choice in _dicts(chunk.get("choices")):
            if choice.get("index", 0) == 0:
                self._take_choice(choice, choice.get("delta"))

    def _take_body(self, event: UpstreamBody) -> None:
        answer = _object(event.body) or {}
        if event.status != 200:
            self._emit(Failed(_error(event.status, event.body)))
            return
        self._has_answer = True
        self._usage = usage_of(event.body)
        choices = _dicts(answer.get("choices"))
        if choices:
            self._take_choice(choices[0], choices[0].get("message"))
        self._end()

    def _take_choice(self, choice: dict[str, Any], said: object) -> None:
        if isinstance(said, dict):
            thought = said.get("reasoning_content") or said.get("reasoning")
            if isinstance(thought, str) and thought:
                self._emit(ReasoningDelta(0, thought))
            if text := _text_of(said.get("content")) or _text_of(said.get("refusal")):
                self._take_text(text)
            for at, call in enumerate(_dicts(said.get("tool_calls"))):
                self._take_call(call, at)
        if isinstance(reason := choice.get("finish_reason"), str):
            self._reason = reason
        if isinstance(stop := choice.get("stop_reason"), str):
            self._stop = stop  # as vLLM tells which stop string it was

    def _take_text(self, text: str) -> None:
        if self._calls:
            self._late_text.append(text)
        else:
            self._emit(TextDelta(0, text))

    def _take_call(self, part: dict[str, Any], at: int) -> None:
        index = part.get("index")
        index = index if isinstance(index, int) else at
        is_first = not self._calls
        call = self._calls.setdefault(index, _Call())
        given = part.get("function")
        function = given if isinstance(given, dict) else {}
        if isinstance(call_id := part.get("id"), str) and call_id:
            call.id = call_id
        if isinstance(name := function.get("name"), str) and not call.name:
            call.name = name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        text = arguments if isinstance(arguments, str) else ""
        if call.is_live:
            if text:
                self._emit(ToolCallArguments(0, 0, text))
            return
        call.arguments.append(text)
        if is_first and call.name:
            call.is_live = True
            self._begin(0, call)

    def _begin(self, index: int, call: _Call) -> None:
        self._emit(ToolCallStart(0, index, call.id or f"call_{index}", call.name))
        if text := "".join(call.arguments):
            self._emit(ToolCallArguments(0, index, text))

    def _end(self) -> None:
        """The answer is complete."""
        if not self._has_answer:
            return
        self._has_answer = False
        num_calls = 0
        is_cut = self._reason == "length"
        for at, call in enumerate(self._calls.values(), 1):
            if not call.is_live:
                if not call.name:
                    continue
                self._begin(num_calls, call)
            self._emit(ToolCallEnd(0, num_calls, is_whole=not is_cut or at < len(self._calls)))
            num_calls += 1
        if self._late_text:
            self._emit(TextDelta(0, "".join(self._late_text)))
        if is_cut:
            self._emit(Finished(0, "length"))
        elif num_calls or self._reason in _CALLS:
            self._emit(Finished(0, "tool_calls"))
        else:
            self._emit(Finished(0, "stop", self._stop))
        if self._usage is not None:
            self._emit(self._usage)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text_of(content: object) -> str:
    """The text of a message's content, which some providers send in parts."""
    if isinstance(content, str):
        return content
    return "".join(_text_of(part.get("text")) for part in _dicts(content))


def _error(status: int, body: bytes) -> ApiError:
    """The provider's refusal of the request."""
    return error_of(status, body) or ApiError(status, "The provider refused this request.")
