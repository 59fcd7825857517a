"""Server-sent events as bytes.

Owns the cut of a byte stream into whole events, so that a broken stream never ends inside one.
Must not know what events mean, but for what decides about a provider: the first content, errors,
what cannot be read, and the last one.
"""

import itertools
import re
from enum import Enum, auto
from typing import Final

import msgspec

from protocol.errors import HermaError

MAX_EVENT_BYTES: Final = 8 * 2**20

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA_LINE: Final = re.compile(rb"(?:^|[\r\n])data: ?([^\r\n]*)")
_DONE: Final = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")


class EventTooLarge(HermaError):
    """A single event of a provider is over the limit."""


class EventCutter:
    """Bytes in, whole events out. `is_done`: the closing `[DONE]` has come."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self.is_done = False

    def push(self, data: bytes) -> bytes:
        """The whole events that `data` completes, unchanged and in order; b"" if none.

        Raises `EventTooLarge` for an event of more than 8 MiB.
        """
        # An event may end in a blank line that was split over two reads: look back three bytes.
        search_from = max(0, len(self._pending) - 3)
        self._pending += data
        end = 0
        for match in _EVENT_END.finditer(self._pending, search_from):
            end = match.end()
        if len(self._pending) - end > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event is over {MAX_EVENT_BYTES} bytes")
        if not end:
            return b""
        whole = bytes(self._pending[:end])
        del self._pending[:end]
        self.is_done = self.is_done or _DONE.search(whole) is not None
        return whole

    def rest(self) -> bytes:
        """What follows the last whole event; some providers leave the last blank line out."""
        rest = bytes(self._pending)
        self._pending.clear()
        if _DONE.search(rest) is not None:
            self.is_done = True
            return rest.rstrip(b"\r\n") + b"\n\n"
        return b""


def split_events(events: bytes) -> list[bytes]:
    """The single events of whole `events`, each with its blank line."""
    ends = [match.end() for match in _EVENT_END.finditer(events)]
    return [events[start:end] for start, end in itertools.pairwise([0, *ends])]


def data_of(event: bytes) -> bytes:
    """The data of one event; b"" if it has none."""
    return b"\n".join(_DATA_LINE.findall(event))


class Kind(Enum):
    """What the data of an event is. `EMPTY` chunks hold nothing that an answer consists of."""

    COMMENT = auto()
    EMPTY = auto()
    CONTENT = auto()
    DONE = auto()
    ERROR = auto()
    GARBAGE = auto()


class _Chunk(msgspec.Struct):
    error: object = None
    choices: object = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


def is_error(body: bytes) -> bool:
    """Whether a JSON object is an error where an answer was due."""
    return bool(_decode_chunk(body).error)


def kind_of(event: bytes) -> Kind:
    """What one whole event is, as far as it decides about its provider."""
    data = data_of(event)
    if not data.strip():
        return Kind.COMMENT
    if data.startswith(b"[DONE]"):
        return Kind.DONE
    try:
        chunk = _decode_chunk(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Kind.GARBAGE
    if chunk.error:
        return Kind.ERROR
    choices = chunk.choices if isinstance(chunk.choices, list) else []
    return Kind.CONTENT if any(map(_says_something, choices)) else Kind.EMPTY


def _says_something(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    said = delta.items() if isinstance(delta, dict) else ()
    is_said = any(value for name, value in said if name != "role")
    return is_said or bool(choice.get("text") or choice.get("finish_reason"))
