"""The event feed: publishes fleet events.

Owns what happens to an event: it is counted, logged as one line of JSON, and given to the
listeners. Must not know why something happened. Publishing never waits: a slow listener loses its
oldest events, and is told how many.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import msgspec
import trio

from gateway.api import busy
from gateway.telemetry.fleet_events import EVENT_KINDS, EngineFault, FleetEvent, kind_of

LOGGER: Final = "herma.events"
MAX_WAITING: Final = 256
"""Events that a listener may be behind; about 40 KB."""
MAX_LISTENERS: Final = 16
MAX_RECENT: Final = 1024
"""Events that are kept for late and slow readers; some 200 KB."""

_log = logging.getLogger(LOGGER)
_encode = msgspec.json.Encoder().encode


class PublishedEvent(msgspec.Struct, frozen=True):
    """An event as published: `number` rises by one from the gateway's start, `json` is one line
    that begins with the kind and ends with `time` (UTC).
    """

    number: int
    kind: str
    json: bytes


class Listener:
    """A bounded queue of the events since the listener connected."""

    def __init__(self) -> None:
        self._waiting: deque[PublishedEvent] = deque()
        self._news = trio.Event()
        self._num_lost = 0

    def put(self, event: PublishedEvent) -> None:
        """Add an event; the oldest one is dropped if there is no room."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._num_lost += 1
        self._waiting.append(event)
        self._news.set()

    async def wait(self) -> None:
        await self._news.wait()

    def take(self) -> tuple[int, list[PublishedEvent]]:
        """The number of events that were lost since the last call, and the events after those."""
        lost, events = self._num_lost, list(self._waiting)
        self._num_lost = 0
        self._waiting.clear()
        self._news = trio.Event()
        return lost, events


class EventFeed:
    """`publish` never waits. `unix_time` gives seconds since 1970. `process` names this process in
    each event where several share a port. `recent` holds the last events, for reading.
    """

    def __init__(
        self, unix_time: Callable[[], float] = time.time, process: str | None = None
    ) -> None:
        self._now = unix_time
        self._process_field = b"" if process is None else b',"process":' + _encode(process)
        self._listeners: set[Listener] = set()
        self._number = 0
        self.recent: deque[PublishedEvent] = deque(maxlen=MAX_RECENT)
        self.counts: dict[str, int] = dict.fromkeys(EVENT_KINDS, 0)

    def publish(self, event: FleetEvent) -> None:
        """Publish an event that has just happened."""
        kind = kind_of(event)
        self.counts[kind] += 1
        self._number += 1
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        end = self._process_field + b',"time":"' + at.encode() + b'"}'
        line = _encode(event)[:-1] + end
        told = line
        if isinstance(event, EngineFault):  # the link logs the cause in a separate line
            told = _encode(msgspec.structs.replace(event, cause=""))[:-1] + end
        _log.info("%s", told.decode())
        published = PublishedEvent(self._number, kind, line)
        self.recent.append(published)
        for listener in self._listeners:
            listener.put(published)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Receive events within the block. Raises `ApiError` 429 for too many listeners."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise busy(f"{MAX_LISTENERS} listeners are connected already.", 10)
        listener = Listener()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
