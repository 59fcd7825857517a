"""Read deadlines: how long a peer may be silent or slow.

Owns the deadlines, what a connection waits for and since when. Must not know the clock: `now` is an
argument.

A periodic check compares the connection with its state at the previous check, so a deadline may be
noticed one period late. In return bytes that arrive cost nothing, and a request has no timer.
"""

from dataclasses import dataclass
from typing import Literal

from gateway.http.server.parser import ParsedRequest, RequestParser

Phase = Literal["idle", "head"] | ParsedRequest
"""What the server waits for: the next request, the rest of a head, or the rest of the body of this
request.
"""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a peer may take.

    `idle_s` between requests is longer than common clients keep a pooled connection (5 to 60 s). A
    head must be complete `head_s` after its first byte. A body may not pause for `body_silence_s`,
    and after `body_grace_s` may not be slower than `min_body_bytes_per_s` on average. After an
    answer to an incomplete request the server reads and drops the rest for `linger_s`: closing a
    socket with unread bytes makes the kernel reset the connection, and the client may lose the
    answer.
    """

    idle_s: float = 75.0
    head_s: float = 20.0
    body_silence_s: float = 30.0
    body_grace_s: float = 30.0
    min_body_bytes_per_s: float = 1024.0
    linger_s: float = 2.0

    def body_by(self, began_at: float, now: float, num_bytes: int) -> float:
        """When a body is overdue that began at `began_at`, has `num_bytes` so far, and of which the
        last bytes came at `now`.
        """
        slowest_at = began_at + self.body_grace_s + num_bytes / self.min_body_bytes_per_s
        return min(now + self.body_silence_s, slowest_at)

    @property
    def sweep_s(self) -> float:
        """The period of the check. It is at most twice the tick of other tasks at rest, so that the
        check wakes an idle process at no additional moment.
        """
        shortest = min(self.idle_s, self.head_s, self.body_silence_s)
        return min(0.8, shortest / 4)


class ReadDeadlines:
    """The deadlines of one connection, checked by a periodic call of `look`."""

    __slots__ = ("_began_at", "_deadlines", "_heard_at", "_num_answered", "_num_bytes", "_phase")

    def __init__(self, deadlines: Deadlines, now: float) -> None:
        self._deadlines = deadlines
        self._phase: Phase | None = "idle"
        self._began_at = now
        self._heard_at = now
        self._num_bytes = 0
        self._num_answered = 0

    def look(
        self, parser: RequestParser, now: float, *, num_answered: int, is_answering: bool
    ) -> Phase | None:
        """What the peer is overdue with, or None. `num_answered` distinguishes a wait from the same
        kind of wait after another request. `is_answering`: the server, not the peer, is to act.
        """
        phase = _phase(parser, is_answering=is_answering)
        if phase is not self._phase or num_answered != self._num_answered:
            self._phase = phase
            self._num_answered = num_answered
            self._began_at = self._heard_at = now
            self._num_bytes = 0
        return phase if phase is not None and now >= self._due_at(phase, now) else None

    def _due_at(self, phase: Phase, now: float) -> float:
        deadlines = self._deadlines
        if isinstance(phase, ParsedRequest):
            if phase.num_body_bytes != self._num_bytes:
                self._num_bytes = phase.num_body_bytes
                self._heard_at = now
            return deadlines.body_by(self._began_at, self._heard_at, self._num_bytes)
        return self._began_at + (deadlines.head_s if phase == "head" else deadlines.idle_s)


def _phase(parser: RequestParser, *, is_answering: bool) -> Phase | None:
    if parser.is_full:
        return None
    if (body_of := parser.body_of) is not None:
        waits = body_of.hold is not None and body_of.hold.waits_since is not None
        return None if waits else body_of
    if is_answering:
        return None
    return "head" if parser.is_in_head else "idle"
