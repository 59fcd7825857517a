"""Chat events: a provider's chat answer, parsed into the events of a turn.

Owns how chunks and whole answers are read for the APIs that cannot pass them on as bytes. The
stream was checked before: every event is a JSON object, and none is an error. Must not know those
APIs.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final

from gateway.api import (
    ApiError,
    ChoiceFinished,
    Failed,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    Usage,
    connection_lost,
)
from gateway.upstream.annotations import Annotations
from gateway.upstream.answer_end import FILTERED, LENGTH, End, end_of
from gateway.upstream.call_parts import CallPart, CallParts, is_readable, object_in
from gateway.upstream.call_text import CallText
from gateway.upstream.choice_forms import text_of
from gateway.upstream.error_words import error_of
from gateway.upstream.scores import scores_in
from gateway.upstream.sse import data_of, index_of, split_events
from gateway.upstream.thoughts import thought_of
from gateway.upstream.usage import UsageCount, may_contain_usage, usage_of
from protocol.reading import objects_in, read_object

_STOPS: Final = ("stop_reason", "matched_stop")
"""The fields of vLLM and SGLang with the stop string that ended an answer; a number is a
token id.
"""
_NO_OBJECT: Final = "a tool call has arguments that are no JSON object"


class _Call:
    """A tool call while its parts arrive. `is_live`: its arguments are passed on at once."""

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.text = CallText()
        self.arguments: list[str] = []
        self.is_live = False


class ChatEvents:
    """Takes the events of a turn. A worker's events pass unchanged to `emit`; a provider's answer
    is emitted as the same kinds of events. Only the first choice counts.

    Annotations of the text follow it, before a call or the end. The first tool call is passed on as
    it arrives, unless its arguments are JSON in a JSON string: then it waits for its end. Further
    calls, and text after a call, wait for the end, because providers may interleave several calls.
    White space in front of all text waits for it, and is dropped in front of a call: llama.cpp
    leaves there what stood between the thoughts and the call, and a text of it alone is refused by
    Anthropic when it comes back.
    With `needs_objects` the client has no place for arguments that are no JSON object: such a call
    is a failure, and none of it is passed on before its arguments begin as one.
    """

    def __init__(self, emit: Callable[[TurnEvent], None], *, needs_objects: bool = False) -> None:
        self._emit = emit
        self._needs_objects = needs_objects
        self._parts = CallParts()
        self._legacy_id = ""
        self._calls: dict[int, _Call] = {}
        self._late_text: list[str] = []
        self._late_scores: tuple[TokenLogprob, ...] | None = None
        self._has_text = False
        self._annotations = Annotations()
        self._reason = "stop"
        self._stop: str | None = None
        self._usage: Usage | None = None
        self._count = UsageCount()
        self._index: int | None = None
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
        if data.startswith(b"[DONE]"):
            self._end()
            return
        chunk = read_object(data)
        if chunk is None:
            if data.strip():
                self._emit(Failed(connection_lost()))
            return
        self._has_answer = True
        if may_contain_usage(data) and self._count.add(data):
            self._usage = self._count.usage
        for choice in objects_in(chunk.get("choices")):
            index = index_of(choice)
            if self._index is None:
                self._index = index
            if index == self._index:
                self._take_choice(chunk, choice, choice.get("delta"), data)

    def _take_body(self, event: UpstreamBody) -> None:
        answer = read_object(event.body) or {}
        if event.status != 200:
            self._emit(Failed(_error(event.status, event.body)))
            return
        self._has_answer = True
        self._usage = usage_of(event.body)
        choices = objects_in(answer.get("choices"))
        if choices:
            self._take_choice(answer, choices[0], choices[0].get("message"), event.body)
        self._end()

    def _take_choice(
        self, answer: dict[str, Any], choice: dict[str, Any], said: object, data: bytes
    ) -> None:
        if isinstance(said, dict):
            self._annotations.read(answer, said)
            if thought := thought_of(said):
                self._emit(ReasoningDelta(0, thought))
            if text := text_of(said.get("content")):
                self._take_text(text, scores_in(choice.get("logprobs")) or None)
            if refusal := text_of(said.get("refusal")):
                self._take_refusal(refusal)
            given = said.get("tool_calls") or self._legacy_call(said.get("function_call"), data)
            if given:
                for part in self._parts.take(given):
                    self._take_part(part)
        if isinstance(reason := choice.get("finish_reason"), str):
            self._reason = reason
        for name in _STOPS:
            if isinstance(stop := choice.get(name), str):
                self._stop = stop

    def _legacy_call(self, function: object, data: bytes) -> list[dict[str, Any]]:
        """`function_call`, which was before `tool_calls`, as a part of them. It has no id: that of
        the answer and its time, in `data`, make one that no other turn has.
        """
        if not isinstance(function, dict):
            return []
        if not self._legacy_id:
            self._legacy_id = f"call_{hashlib.blake2b(data, digest_size=12).hexdigest()}"
        return [{"index": 0, "id": self._legacy_id, "function": function}]

    def _take_text(self, text: str, scores: tuple[TokenLogprob, ...] | None) -> None:
        self._has_text = self._has_text or not text.isspace()
        if not self._calls and self._has_text and not self._late_text:
            self._emit(TextDelta(0, text, scores))
            return
        self._late_text.append(text)
        if scores is not None:
            self._late_scores = (self._late_scores or ()) + scores
        if self._has_text and not self._calls:
            self._tell_text()

    def _take_refusal(self, text: str) -> None:
        """Emit a refusal behind the text so far; behind a call it is text."""
        if self._calls:
            self._take_text(text, None)
            return
        self._has_text = True
        self._tell_text()
        self._emit(TextDelta(0, text, is_refusal=True))

    def _drop_text(self) -> None:
        """Drop white space in front of a call."""
        self._late_text.clear()
        self._late_scores = None

    def _tell_text(self) -> None:
        """Emit the text that waits, and what all text before refers to."""
        text, annotations = "".join(self._late_text), self._annotations.take()
        scores, self._late_scores = self._late_scores, None
        self._late_text.clear()
        if text or annotations:
            self._emit(TextDelta(0, text, scores, annotations))

    def _take_part(self, part: CallPart) -> None:
        if part.id is not None:
            if not self._calls:
                if not self._has_text:
                    self._drop_text()
                self._tell_text()
            self._calls[part.number] = _Call(part.id, part.name or "")
        call = self._calls[part.number]
        arguments = call.text.read(part.arguments)
        if not call.is_live and part.number == 0:
            begun = "".join([*call.arguments, arguments])
            first = begun.lstrip()[:1]
            if first == "{" or not (self._needs_objects or first in {"", '"'}):
                call.is_live = True
                self._emit(ToolCallStart(0, 0, call.id, call.name))
                arguments = begun
                call.arguments.clear()
        if not call.is_live or self._needs_objects:
            call.arguments.append(arguments)
        if call.is_live and arguments:
            self._emit(ToolCallArguments(0, 0, arguments))

    def _end(self) -> None:
        """The answer is complete."""
        if not self._has_answer:
            return
        self._has_answer = False
        end, flaw = end_of(self._reason), self._parts.flaw()
        is_cut = end is LENGTH or (end is FILTERED and bool(flaw))
        if flaw and not is_cut:  # a call in the older form is unchecked so far
            self._emit(Failed(connection_lost(flaw)))
            return
        for part in () if is_cut else self._parts.end():
            self._take_part(part)
        if self._needs_objects and not self._make_objects(is_cut=is_cut):
            self._emit(Failed(connection_lost(_NO_OBJECT)))
            return
        self._end_calls(is_cut=is_cut)
        self._tell_text()
        self._emit(self._finished(end))
        if self._usage is not None:
            self._emit(self._usage)

    def _end_calls(self, *, is_cut: bool) -> None:
        """Emit the calls that waited, and the end of each; `is_cut`: the last one breaks off."""
        for number, call in self._calls.items():
            if not call.is_live:
                self._emit(ToolCallStart(0, number, call.id, call.name))
                text = "".join(call.arguments)
                if text.startswith('"'):
                    text = object_in(text) or text  # some servers encode the object twice
                if text:
                    self._emit(ToolCallArguments(0, number, text))
            is_whole = not is_cut or number + 1 < len(self._calls)
            self._emit(ToolCallEnd(0, number, is_whole=is_whole))

    def _make_objects(self, *, is_cut: bool) -> bool:
        """Whether the arguments of every call are a JSON object, or can be made one; the arguments
        of a last call that was cut need only begin as one.
        """
        for number, call in self._calls.items():
            text = "".join(call.arguments)
            is_last = number == len(self._calls) - 1
            if is_cut and is_last and text.lstrip()[:1] in {"", "{"}:
                continue
            found = object_in(text)
            if call.is_live and found != text:
                if not is_readable(text):
                    return False
            elif found is None:
                return False
            else:
                call.arguments = [found]
        return True

    def _finished(self, end: End) -> ChoiceFinished:
        if end is LENGTH:
            return ChoiceFinished(0, "length")
        if end is FILTERED:
            return ChoiceFinished(0, "content_filter")
        if self._calls:
            return ChoiceFinished(0, "tool_calls")
        return ChoiceFinished(0, "stop", self._stop)


def _error(status: int, body: bytes) -> ApiError:
    """The provider's refusal of the request."""
    return error_of(status, body) or ApiError(status, "The provider refused this request.")
