"""Server-sent events as bytes.

Owns splitting a byte stream into whole events, so that a broken stream never ends inside one, and
the kinds of events: content, error, garbage and so on. Must not know anything else about the
meaning of events.
"""

import codecs
import itertools
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

import msgspec

from protocol.errors import HermaError
from protocol.reading import FAULTS, read_object

MAX_EVENT_BYTES: Final = 8 * 2**20

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\r?\n|\r\r")
_DENSE_BYTES: Final = 4096
_FILL: Final = re.compile(
    rb"(?:(?<=\n\n)|(?<=\r\r)|(?<=\n\r\n))(?:(?::[^\r\n]*+)?+(?:\r\n|\n|\r)){8,}+"
)
"""Comments and blank lines, behind the end of an event."""
_DATA_LINE: Final = re.compile(rb"(?:^|[\r\n])data: ?([^\r\n]*)")
_FIELD: Final = re.compile(rb"(?:^|[\r\n])[^:\r\n]")
_DONE: Final = re.compile(rb"(?:^|[\r\n])data:[ \t]*\"?\[(?:DONE|done)\]")
_LISTED_ERROR: Final = re.compile(rb"\[\s*\{\s*\"error\"\s*:")
"""Google's errors are in a list."""
_ERROR_EVENT: Final = re.compile(rb"(?:^|[\r\n])event: ?error[ \t]*(?:[\r\n]|\Z)")


_encode: Final = msgspec.json.Encoder().encode


def event_of(chunk: Mapping[str, Any]) -> bytes:
    """A chunk as a whole event."""
    return b"data: " + _encode(chunk) + b"\n\n"


class EventTooLarge(HermaError):
    """A single event of a provider is over the limit."""


class ProviderEventSplitter:
    """Takes bytes and gives whole events. `is_done`: the final `[DONE]` has arrived.
    `is_between_events`: no incomplete event is pending.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._has_begun = False
        self.is_done = False
        self.is_between_events = True
        self.rest = b""
        """The bytes that `flush` has found and that are no event."""

    @property
    def is_new(self) -> bool:
        """Whether nothing has come yet."""
        return not (self._has_begun or self._pending)

    def push(self, data: bytes) -> bytes:
        """The whole events that `data` completes, unchanged and in order; b"" if none. A byte-order
        mark before the first event is dropped, and blank lines are; of many comments and blank
        lines in one read one comment is left.

        Raises `EventTooLarge` for an event of more than 8 MiB.
        """
        if not self._has_begun:
            data = self._without_mark(data)
        if not self._pending and len(data) <= _DENSE_BYTES and data.endswith(b"\n\n"):
            # The usual case: one read, one event. Whole events have no size limit.
            self.is_done = self.is_done or _has_done(data)
            return data
        if len(data) > _DENSE_BYTES:
            # Each would be an event: 64 KiB of them would hold the loop up for half a second.
            data = _FILL.sub(b":\n\n", data)
        # An event may end in a blank line that was split over two reads: look back three bytes.
        search_from = max(0, len(self._pending) - 3)
        self._pending += data
        end = 0
        for match in _EVENT_END.finditer(self._pending, search_from):
            end = match.end()
        if len(self._pending) - end > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event is over {MAX_EVENT_BYTES} bytes")
        whole = bytes(self._pending[:end])
        del self._pending[:end]
        self.is_between_events = not self._pending
        self.is_done = self.is_done or _has_done(whole)
        return whole

    def _without_mark(self, data: bytes) -> bytes:
        data = bytes(self._pending) + data
        self._pending.clear()
        if codecs.BOM_UTF8.startswith(data):
            self._pending += data  # the rest of the mark may follow
            return b""
        self._has_begun = True
        return data.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")

    def flush(self) -> bytes:
        """A last event without its blank line, which some providers omit; b"" if there is none, or
        only the beginning of one.
        """
        rest = bytes(self._pending).rstrip(b"\r\n") + b"\n\n"
        self._pending.clear()
        self.is_done = self.is_done or _has_done(rest)
        if _has_done(rest) or read_object(data_of(rest)) is not None:
            return rest
        self.rest = b"" if data_of(rest) else rest
        return b""


def split_events(events: bytes) -> list[bytes]:
    """The single events in `events`, each with its blank line."""
    if events.find(b"\r") < 0:
        return [event + b"\n\n" for event in events.split(b"\n\n")[:-1]]
    ends = [match.end() for match in _EVENT_END.finditer(events)]
    return [events[start:end] for start, end in itertools.pairwise([0, *ends])]


def data_of(event: bytes) -> bytes:
    """The data of one event; b"" if it has none."""
    if (
        event.startswith(b"data: ")
        and event.find(b"\n") == len(event) - 2
        and event.find(b"\r") < 0
    ):
        return event[6:-2]
    return b"\n".join(_DATA_LINE.findall(event))


def index_of(choice: Mapping[str, Any]) -> int:
    """The number of a choice in a chunk; servers that know only one may leave it out, send null or
    write it as a text.
    """
    given = choice.get("index")
    if isinstance(given, str) and given.isdecimal():
        return int(given[:4])
    return given if isinstance(given, int) else 0


class EventKind(Enum):
    """What an event contains. `EMPTY` is a chunk without a part of the answer, `HOLLOW` an event
    with fields but no data.
    """

    COMMENT = auto()
    HOLLOW = auto()
    EMPTY = auto()
    CONTENT = auto()
    DONE = auto()
    ERROR = auto()
    GARBAGE = auto()


class _Chunk(msgspec.Struct):
    error: object = None
    choices: object = None
    form: Any = msgspec.field(name="object", default=None)
    type: Any = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


class _Soundness(msgspec.Struct):
    error: object = None
    form: Any = msgspec.field(name="object", default=None)
    type: Any = None


_decode: Final = msgspec.json.Decoder().decode
_decode_soundness: Final = msgspec.json.Decoder(_Soundness).decode


def kind_of(event: bytes) -> EventKind:
    """The kind of one whole event."""
    data = data_of(event)
    if not (said := data.strip()):
        return EventKind.COMMENT if _FIELD.search(event) is None else EventKind.HOLLOW
    if said.startswith((b"[DONE]", b"[done]", b'"[DONE]"')):
        return EventKind.DONE
    if said == b"null":
        return EventKind.HOLLOW
    if event.find(b"error") >= 0 and _ERROR_EVENT.search(event) is not None:
        return EventKind.ERROR
    try:
        chunk = _decode_chunk(data)
    except FAULTS:
        return EventKind.ERROR if _LISTED_ERROR.match(said) else EventKind.GARBAGE
    if tells_error(chunk.error) or "error" in (chunk.form, chunk.type):
        return EventKind.ERROR
    choices = chunk.choices if isinstance(chunk.choices, list) else []
    return EventKind.CONTENT if any(map(_has_content, choices)) else EventKind.EMPTY


def error_of_event(event: bytes) -> object:
    """The error in an event of which `kind_of` is `ERROR`: its field `error`, all of it if it has
    none, or a text.
    """
    data = data_of(event)
    try:
        value = _decode(data)
    except FAULTS:
        return data.decode("utf-8", "replace")
    return (value.get("error") or value) if isinstance(value, dict) else value


def has_text(event: bytes) -> bool:
    """Whether one whole chunk has a part of the answer, beside the reason of its end."""
    choices = _decode_chunk(data_of(event)).choices
    return any(map(_has_text, choices if isinstance(choices, list) else ()))


def kind_within(event: bytes) -> EventKind:
    """`kind_of` for an event of an answer that has begun, in a tenth of the time: `EMPTY` counts as
    `CONTENT`, because the difference no longer matters.
    """
    data = data_of(event)
    if not data.startswith(b"{") or (
        event.find(b"error") >= 0 and _ERROR_EVENT.search(event) is not None
    ):
        return kind_of(event)
    return _kind_of_object(data)


def is_plain(data: bytes) -> bool:
    """Whether `data` is exactly one event in the usual form, and `CONTENT` within an answer."""
    return (
        data.startswith(b"data: {")
        and data.endswith(b"\n\n")
        and data.find(b"\n") == len(data) - 2
        and data.find(b"\r") < 0
        and _kind_of_object(data[6:-2]) is EventKind.CONTENT
    )


def _kind_of_object(data: bytes) -> EventKind:
    try:
        if not data.isascii():
            data.decode()
        found = _decode_soundness(data)
    except FAULTS:
        return EventKind.GARBAGE
    if tells_error(found.error) or "error" in (found.form, found.type):
        return EventKind.ERROR
    # Some clients take it for an error.
    return EventKind.EMPTY if found.error else EventKind.CONTENT


def tells_error(error: object) -> bool:
    """Whether the field `error` of an answer or a chunk tells an error. Some servers always send
    the field, empty.
    """
    return any(error.values()) if isinstance(error, dict) else bool(error)


def says_end(reason: object) -> bool:
    """Whether a `finish_reason` says that the answer ended. Some servers write null as a text,
    or as a number.
    """
    return isinstance(reason, str) and reason not in ("", "null")


def _has_done(events: bytes) -> bool:
    is_named = events.find(b"[DONE]") >= 0 or events.find(b"[done]") >= 0
    return is_named and _DONE.search(events) is not None


def _has_content(choice: object) -> bool:
    return _has_text(choice) or (isinstance(choice, dict) and says_end(choice.get("finish_reason")))


def _has_text(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    fields = delta.items() if isinstance(delta, dict) else ()
    return any(value for name, value in fields if name != "role") or bool(choice.get("text"))
