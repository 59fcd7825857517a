"""Server-sent events as bytes.

Owns the cut of a byte stream into whole events, so that a broken stream never ends inside one.
Must not know what events mean, but for the two that decide about a provider: the first that
carries data, and the last.
"""

import itertools
import re
from typing import Final

import msgspec

from protocol.errors import HermaError

MAX_EVENT_BYTES: Final = 8 * 2**20

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA: Final = re.compile(rb"(?:^|[\r\n])data:")
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


def has_data(events: bytes) -> bool:
    """Whether `events` are more than comments: comments are no sign of an answer."""
    return _DATA.search(events) is not None


def split_events(events: bytes) -> list[bytes]:
    """The single events of whole `events`, each with its blank line."""
    ends = [match.end() for match in _EVENT_END.finditer(events)]
    return [events[start:end] for start, end in itertools.pairwise([0, *ends])]


def data_of(event: bytes) -> bytes:
    """The data of one event; b"" if it has none."""
    return b"\n".join(_DATA_LINE.findall(event))


def is_error(events: bytes) -> bool:
    """Whether the first data in `events` is an error object where an answer was due."""
    found = _DATA.search(events)
    if found is None:
        return False
    line = re.split(rb"[\r\n]", events[found.end() :], maxsplit=1)[0].strip()
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value.get("error")) and not value.get("choices")
