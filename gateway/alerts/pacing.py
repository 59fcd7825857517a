"""When alerts are sent to one receiver.

Owns the queue, the rate, quiet hours, and the time of the next attempt. Must not know forms,
addresses or a clock: `now` is in seconds, `minute` the minute of the local day.
"""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Final, NamedTuple, final

from gateway.alerts.alert import Alert

MAX_WAITING: Final = 200
"""The most alerts that wait. A further one displaces the oldest, and the next message says how many
alerts were dropped.
"""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_MAX_LINES: Final = 20
_HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


class QuietHours(NamedTuple):
    """From one minute of the day to another, over midnight if the first is later."""

    begin: int
    end: int

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Parse a text such as "22:00-07:00". Raises `ValueError`."""
        found = _HOURS.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not HH:MM-HH:MM")
        h, m, end_h, end_m = map(int, found.groups())
        return cls(60 * h + m, 60 * end_h + end_m)

    def holds(self, minute: int) -> bool:
        """Whether that minute is quiet."""
        if self.begin <= self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


@final
class Pacing:
    """One receiver's alerts, in the order of their events.

    At most `per_hour` messages are sent in any hour. Alerts that wait for the next message, or for
    the end of quiet hours, become one message. A message that failed stays the first until it is
    delivered, and is retried after pauses that double.
    """

    def __init__(self, per_hour: int, quiet: QuietHours | None = None) -> None:
        self._per_hour = per_hour
        self._quiet = quiet
        self._waiting: deque[Alert] = deque()
        self._num_lost = 0
        self._sent_s: deque[float] = deque()
        self._under_way: Alert | None = None
        self._next_s = -math.inf
        self._pause_s = FIRST_PAUSE_S

    def put(self, alert: Alert) -> None:
        """Queue an alert."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._num_lost += 1
        self._waiting.append(alert)

    def due(self, now: float, minute: int) -> Alert | None:
        """What to send now, if anything; call `delivered` or `failed` before the next call."""
        if now < self._next_s:
            return None
        if self._under_way is None:
            while self._sent_s and now - self._sent_s[0] >= _HOUR_S:
                self._sent_s.popleft()
            if len(self._sent_s) < self._per_hour:
                self._under_way = self._next(is_quiet=self._is_quiet(minute))
        return self._under_way

    def delivered(self, now: float) -> None:
        """The receiver has the last message of `due`."""
        self._under_way = None
        self._sent_s.append(now)
        self._next_s = -math.inf
        self._pause_s = FIRST_PAUSE_S

    def failed(self, now: float) -> None:
        """The receiver may not have the last message of `due`: retry it later."""
        self._next_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def wait_s(self, now: float, minute: int) -> float:
        """Seconds until `due` may have something; infinite if only `put` can change that."""
        if self._under_way is not None:
            return max(0.0, self._next_s - now)
        if not self._waiting:
            return math.inf
        if len(self._sent_s) >= self._per_hour:
            return max(0.0, self._sent_s[0] + _HOUR_S - now)
        if self._is_quiet(minute) and not any(one.level == "critical" for one in self._waiting):
            return 60.0
        return 0.0

    def _is_quiet(self, minute: int) -> bool:
        return self._quiet is not None and self._quiet.holds(minute)

    def _next(self, *, is_quiet: bool) -> Alert | None:
        """The next message: all alerts that may be sent now, in one message if they waited
        together.
        """
        ready = [one for one in self._waiting if not is_quiet or one.level == "critical"]
        if not ready:
            return None
        room = self._per_hour - len(self._sent_s)
        if len(ready) <= room and not self._num_lost and not self._has_digest(ready, is_quiet):
            ready = ready[:1]
        left = {one.id for one in ready}
        self._waiting = deque(one for one in self._waiting if one.id not in left)
        if len(ready) == 1 and not self._num_lost:
            return ready[0]
        lost, self._num_lost = self._num_lost, 0
        return _digest(ready, lost)

    def _has_digest(self, ready: list[Alert], is_quiet: bool) -> bool:
        """After quiet hours everything that waited is one message."""
        return self._quiet is not None and not is_quiet and len(ready) > 1


def _digest(alerts: list[Alert], num_lost: int) -> Alert:
    lines = [f"{one.title}: {one.text}" for one in alerts[-_MAX_LINES:]]
    num_hidden = num_lost + len(alerts) - len(lines)
    if num_hidden:
        lines.insert(0, f"{num_hidden} older ones are left out.")
    levels = {one.level for one in alerts}
    level = next(one for one in ("critical", "warning", "good") if one in levels)
    last = alerts[-1]
    title = f"{len(alerts) + num_lost} alerts"
    return Alert(last.id, last.kind, level, title, "\n".join(lines), b"")
