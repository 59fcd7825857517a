"""What happens in the fleet, told to whoever listens.

Owns the one way of an event: counted, logged as one line of JSON, handed to the listeners. Must
not know why something happened. Nobody waits for a listener: a slow one loses its oldest events,
and learns how many.
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
from gateway.telemetry.fleet_events import EVENT_KINDS, FleetEvent, kind_of

LOGGER: Final = "herma.events"
MAX_WAITING: Final = 256
"""Events that a listener may be behind; about 40 KB."""
MAX_LISTENERS: Final = 16

_log = logging.getLogger(LOGGER)
_encode = msgspec.json.Encoder().encode


class Told(msgspec.Struct, frozen=True):
    """An event as it was told: `number` rises by one from the gateway's start, `json` is one line
    that begins with the kind and ends with `time` (UTC).
    """

    number: int
    kind: str
    json: bytes


class Listener:
    """The events since it came, bounded."""

    def __init__(self) -> None:
        self._waiting: deque[Told] = deque()
        self._news = trio.Event()
        self._num_lost = 0

    def put(self, told: Told) -> None:
        """One more; the oldest goes if there is no room."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._num_lost += 1
        self._waiting.append(told)
        self._news.set()

    async def wait(self) -> None:
        """Return once there is something to take."""
        await self._news.wait()

    def take(self) -> tuple[int, list[Told]]:
        """How many were lost since the last call, before those that follow."""
        lost, events = self._num_lost, list(self._waiting)
        self._num_lost = 0
        self._waiting.clear()
        self._news = trio.Event()
        return lost, events


class EventFeed:
    """`publish` never waits. `unix_time` gives seconds since 1970. `process` is who tells, where
    several do.
    """

    def __init__(
        self, unix_time: Callable[[], float] = time.time, process: str | None = None
    ) -> None:
        self._now = unix_time
        self._teller = b"" if process is None else b',"process":' + _encode(process)
        self._listeners: set[Listener] = set()
        self._number = 0
        self.counts: dict[str, int] = dict.fromkeys(EVENT_KINDS, 0)

    @property
    def num_listeners(self) -> int:
        """Who listens now."""
        return len(self._listeners)

    def publish(self, event: FleetEvent) -> None:
        """It has happened now."""
        kind = kind_of(event)
        self.counts[kind] += 1
        self._number += 1
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        line = _encode(event)[:-1] + self._teller + b',"time":"' + at.encode() + b'"}'
        _log.info("%s", line.decode())
        told = Told(self._number, kind, line)
        for listener in self._listeners:
            listener.put(told)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Hear of everything for the length of the block. Raises `ApiError` 429 if too many do."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise busy(f"{MAX_LISTENERS} listeners are connected already.", 10)
        listener = Listener()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
