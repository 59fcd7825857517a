"""The end of a streamed answer, and the tool calls in it.

Owns what is kept of the events of one stream until its end shows whether the answer is whole: how
each choice has ended, and whether the arguments of its calls break off. Chunks whose calls a client
could not read are rewritten: each has one part of one call, one call follows the other, and none
has the end too, because clients read only the first part, give it to the latest call, or take a
call as never done. Must not know when events are passed on.
"""

from collections.abc import Mapping
from typing import Any, Final, final

from gateway.upstream.answer_end import BROKEN, CALLS, FILTERED, LENGTH, STOPPED, End, end_of
from gateway.upstream.call_order import CallOrder
from gateway.upstream.call_parts import NAMELESS, CallIds, CallPart, CallParts
from gateway.upstream.error_words import words_in
from gateway.upstream.kept_calls import CallsMade, reasoning_in
from gateway.upstream.sse import data_of, event_of, index_of, says_end, split_events
from protocol.errors import HermaError
from protocol.reading import objects_in, read_object

MAX_KEPT_BYTES: Final = 2**23


class BrokenEnd(HermaError):
    """The answer is not whole; clients may read the text. `words` are the server's explanation, if
    it gave one.
    """

    def __init__(self, text: str, words: str = "") -> None:
        super().__init__(text)
        self.words = words


@final
class _Choice:
    def __init__(self, ids: CallIds) -> None:
        self.calls = CallParts(ids)
        self.order: CallOrder | None = None
        """The order of several calls; None for a single call."""
        self.end: End | None = None
        self.late_end: tuple[End, bytes] | None = None
        """An end that came before the last arguments of a call, and its event."""
        self.reopened_by: dict[str, Any] | None = None
        """The chunk of the latest call behind the end of a text, which is no end of the calls."""

    @property
    def is_finished(self) -> bool:
        """Whether the choice has said why it ended, and no call behind that is incomplete."""
        return self.end is not None or (self.reopened_by is not None and not self.calls.flaw())

    def rest(self, end: End) -> list[CallPart]:
        """The rest of the calls for the client, at the end of the answer."""
        rest = [] if end is LENGTH else self.calls.end()
        return rest if self.order is None else self.order.take(rest) + self.order.rest()


@final
class StreamEnd:
    """One stream that answers the request `raw`. `steady` are the beginnings of `tool_calls` in
    chunks that only go on with the arguments of a call: these are kept unread, in `kept`, until the
    arguments are looked at. `calls_nothing`: the answer says that it calls tools, and calls none.
    """

    def __init__(self, raw: Mapping[str, Any] | None = None) -> None:
        self._ids = CallIds(raw)
        self._choices: dict[int, _Choice] = {}
        asked = (raw or {}).get("n")
        self._num_choices = asked if isinstance(asked, int) else 1
        self.is_single = asked in (None, 1)
        self.kept = bytearray()
        self.steady: tuple[bytes, bytes] | None = None
        self._steady_number = 0
        self._steady_choice: _Choice | None = None
        self._thoughts = bytearray()
        self._has_plain_end = False
        self.calls_nothing = False
        self.has_waiting = False
        """Whether parts of calls came that may wait."""

    @property
    def is_finished(self) -> bool:
        """Whether every choice that came has said why it ended."""
        if self._has_plain_end:
            return True
        return bool(self._choices) and all(one.is_finished for one in self._choices.values())

    @property
    def is_whole(self) -> bool:
        """Whether as many choices as were asked for have ended."""
        return self.is_finished and (self.is_single or len(self._choices) >= self._num_choices)

    @property
    def is_filtered(self) -> bool:
        """Whether a filter of the server ended a choice."""
        return any(choice.end is FILTERED for choice in self._choices.values())

    def ends_plainly(self, data: bytes) -> bool:
        """Whether `data`, a chunk with a reason for its end, is a usual one of an answer without
        calls, so that nothing is left to check. Spares most answers 80 calls.
        """
        return not self._choices and (
            data.find(b'"finish_reason":"stop"') >= 0
            or data.find(b'"finish_reason":"length"') >= 0
            or data.find(b'"finish_reason": "stop"') >= 0
            or data.find(b'"finish_reason": "length"') >= 0
        )

    def end_plainly(self) -> None:
        """Take such an end of the answer's only choice."""
        self._has_plain_end = True

    def take(self, event: bytes) -> bytes:
        """What the client gets for `event`, a chunk. Raises `BrokenEnd`."""
        if self.kept:
            self._read_kept()
        chunk = read_object(data_of(event)) or {}
        before: list[bytes] = []
        after: list[bytes] = []
        is_changed = False
        for choice in objects_in(chunk.get("choices")):
            index = choice.get("index")
            if index.__class__ is not int:
                index = index_of(choice)
            state = self._choices.get(index)
            if state is None:
                state = self._choices[index] = _Choice(self._ids)
            delta = choice.get("delta")
            if isinstance(delta, dict) and delta.get("tool_calls"):
                is_changed = self._take_calls(state, delta) or is_changed
                if state.end is STOPPED or self._has_plain_end or state.reopened_by is not None:
                    self._has_plain_end, state.end, state.reopened_by = False, None, chunk
                parts = delta.get("tool_calls", [])
                if len(parts) > 1:
                    after += [_with_part(chunk, choice, one) for one in parts[1:]]
                    del parts[1:]
                    is_changed = True
            if choice.get("finish_reason") is not None or state.late_end is not None:
                is_changed = self._take_end(state, chunk, choice, before, after) or is_changed
        if is_changed:
            event = b"" if _is_empty(chunk) else event_of(chunk)
        return b"".join([*before, event, *after]) if before or after else event

    def _take_end(
        self,
        state: _Choice,
        chunk: dict[str, Any],
        choice: dict[str, Any],
        before: list[bytes],
        after: list[bytes],
    ) -> bool:
        """Take what a choice says of its end, and return whether that was changed. What the client
        needs beside the chunk goes into `before` and `after`.
        """
        if state.late_end is not None and not state.calls.flaw():
            (state.end, late), state.late_end = state.late_end, None
            waiting = state.order.rest() if state.order is not None else []
            after += [_with_part(chunk, choice, _written(one)) for one in waiting]
            after.append(late)
        reason, is_changed = choice.get("finish_reason"), False
        if reason is not None and not says_end(reason):
            choice["finish_reason"] = None
            return True
        if not isinstance(reason, str) or state.end is not None:
            return False
        end = end_of(reason)
        if end is BROKEN:
            text = f"ended its answer with finish_reason {reason[:64]!r}"
            raise BrokenEnd(text, words_in(choice.get("error")))
        if end is CALLS and not state.calls.begun and reason != "function_call":
            if state.calls.is_nameless:
                raise BrokenEnd(NAMELESS)
            choice["finish_reason"] = "stop"
            self.calls_nothing = is_changed = True
        if end in (STOPPED, CALLS) and (flaw := state.calls.flaw()):
            delta = choice.get("delta")
            if not state.calls.begun or (isinstance(delta, dict) and delta.get("tool_calls")):
                raise BrokenEnd(flaw)
            # The rest of a call may still come: some servers send its end before it.
            choice["finish_reason"] = reason if end is CALLS else "tool_calls"
            state.late_end = end, _only(chunk, choice)
            choice["finish_reason"], self.steady = None, None
            return True
        state.end = end
        is_changed = (end is STOPPED and ends_by_calls(choice, state.calls)) or is_changed
        parts = [_with_part(chunk, choice, _written(one)) for one in state.rest(end)]
        delta = choice.get("delta")
        if not isinstance(delta, dict) or not delta.get("tool_calls"):
            before += parts
            return is_changed
        after += [*parts, _only(chunk, choice)]
        choice["finish_reason"] = None
        return True

    def keep_thought(self, event: bytes) -> None:
        """Keep an event with reasoning until it is known whether calls follow it."""
        if len(self._thoughts) <= MAX_KEPT_BYTES:
            self._thoughts += event

    def calls_made(self) -> CallsMade | None:
        """The calls of the first choice, and the reasoning before them; None if it has none."""
        index = next(iter(self._choices), 0)
        choice = self._choices.get(index)
        if choice is None or not choice.calls.begun:
            return None
        deltas = [
            one.get("delta")
            for event in split_events(bytes(self._thoughts))
            for one in objects_in((read_object(data_of(event)) or {}).get("choices"))
            if index_of(one) == index
        ]
        reasoning, field = reasoning_in(deltas)
        return CallsMade(tuple(choice.calls.begun), reasoning, field)

    def check(self) -> bytes:
        """The stream says that it is over. Returns what the client gets before that: the end of
        calls that came behind the end of a text. Raises `BrokenEnd` unless every choice has ended.
        """
        if self.kept:
            self._read_kept()
        found: list[bytes] = []
        for index, state in self._choices.items():
            if state.late_end is not None:
                raise BrokenEnd(state.calls.flaw())
            if state.end is None and (chunk := state.reopened_by) is not None:
                choice = {"index": index, "delta": {}, "finish_reason": "tool_calls"}
                if flaw := state.calls.flaw():
                    raise BrokenEnd(flaw)
                self._take_end(state, chunk, choice, found, found)
                found.append(_only(chunk, choice))
        if not self.is_finished:
            raise BrokenEnd("ended its stream without a finish_reason")
        return b"".join(found)

    def _take_calls(self, state: _Choice, delta: dict[str, Any]) -> bool:
        """Take the calls of a delta, which is changed unless a client can read it as it is. Returns
        whether it was changed.
        """
        given = delta["tool_calls"]
        found = state.calls.take(given)
        if state.calls.num_begun > 1:
            found = self._in_order(state, found)
        elif not found:
            self.has_waiting = state.calls.is_waiting
        self.steady = None
        is_late = state.late_end is not None
        if (
            found
            and self.is_single
            and not is_late
            and state.calls.is_open(number := found[-1].number)
        ):
            self._steady_number, self._steady_choice = number, state
            self.steady = (
                b'"tool_calls":[{"index":%d,"function":{"arguments":' % number,
                b'"tool_calls": [{"index": %d, "function": {"arguments": ' % number,
            )
        if _is_same(given, found):
            return False
        if found:
            delta["tool_calls"] = [_written(part) for part in found]
        else:
            del delta["tool_calls"]
        return True

    def _in_order(self, state: _Choice, found: list[CallPart]) -> list[CallPart]:
        """What the client gets now of the parts `found` of several calls."""
        if state.order is None:
            state.order = CallOrder(state.calls)
        self.has_waiting = self.has_waiting or bool(found)
        return state.order.take(found)

    def _read_kept(self) -> None:
        """Read the arguments in the chunks that were passed on unread."""
        data, self.kept = bytes(self.kept), bytearray()
        for event in split_events(data):
            for choice in objects_in((read_object(data_of(event)) or {}).get("choices")):
                delta = choice.get("delta")
                for part in objects_in(
                    delta.get("tool_calls") if isinstance(delta, dict) else None
                ):
                    given = part.get("function")
                    text = given.get("arguments") if isinstance(given, dict) else None
                    if isinstance(text, str) and (state := self._steady_choice) is not None:
                        state.calls.add_arguments(self._steady_number, text)


def ends_by_calls(choice: dict[str, Any], calls: CallParts) -> bool:
    """Whether `choice`, whose reason says that it stopped, has `calls`. Its reason becomes
    "tool_calls": agents that look only at the reason would not make the calls.
    """
    if not calls.begun:
        return False
    choice["finish_reason"] = "tool_calls"
    return True


def _is_same(given: object, found: list[CallPart]) -> bool:
    """Whether a client reads the same in `given` as in `found`."""
    parts = given if isinstance(given, list) else []
    return len(parts) == len(found) and all(map(_says, parts, found))


def _says(part: object, found: CallPart) -> bool:
    if not isinstance(part, dict):
        return False
    index = part.get("index")
    if index != found.number or index.__class__ is not int:
        return False
    given = part.get("function")
    function = given if isinstance(given, dict) else {}
    arguments, name = function.get("arguments"), function.get("name")
    if ("" if arguments is None else arguments) != found.arguments:
        return False
    if found.id is None:
        return not name and not part.get("id")
    return part.get("id") == found.id and name == found.name


def _written(part: CallPart) -> dict[str, Any]:
    if part.id is None:
        return {"index": part.number, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    named = {"index": part.number, "id": part.id, "type": "function", "function": function}
    return {**named, **part.extra}


def _is_empty(chunk: dict[str, Any]) -> bool:
    """Whether nothing is left of a chunk whose end waits."""
    choices = chunk.get("choices") or ()
    says = any(one.get("delta") or one.get("finish_reason") for one in objects_in(choices))
    return not says and not chunk.get("usage")


def _only(chunk: dict[str, Any], choice: dict[str, Any]) -> bytes:
    """The end of a choice as a chunk of its own."""
    own = {**choice, "delta": {}}
    fields = {name: value for name, value in chunk.items() if name != "usage"}
    return event_of({**fields, "choices": [own]})


def _with_part(chunk: dict[str, Any], choice: dict[str, Any], part: object) -> bytes:
    """A chunk beside `chunk` with a part of a call of `choice`."""
    delta = {"tool_calls": [part]}
    own = {"index": choice.get("index", 0), "delta": delta, "finish_reason": None}
    fields = {name: value for name, value in chunk.items() if name != "usage"}
    return event_of({**fields, "choices": [own]})
