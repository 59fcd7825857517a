"""How long a peer's silence or slowness is borne.

Owns what a connection waits for and since when. Must not know the clock: `now` is an argument.

Nothing is noted while bytes come and go: whoever looks now and then sees what has changed since,
and may be late by the time between two looks. So a request costs no deadline of its own.
"""

from typing import Literal

from gateway.http.server.limits import Deadlines
from gateway.http.server.parser import RequestParser
from gateway.http.server.request import Request

Phase = Literal["idle", "head"] | Request
"""What is awaited of the peer: its next request, the rest of a head, or of a request's body."""


class ReadDeadlines:
    """Looked at from time to time, it tells when the peer is overdue."""

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
        """What the peer is overdue with. `num_answered` tells one wait from the next of its kind;
        `is_answering`: it is the server's turn to act.
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
        if isinstance(phase, Request):
            if phase.num_body_bytes != self._num_bytes:
                self._num_bytes = phase.num_body_bytes
                self._heard_at = now
            return deadlines.body_by(self._began_at, self._heard_at, self._num_bytes)
        return self._began_at + (deadlines.head_s if phase == "head" else deadlines.idle_s)


def _phase(parser: RequestParser, *, is_answering: bool) -> Phase | None:
    if parser.is_full:
        return None
    if parser.body_of is not None:
        return parser.body_of
    if is_answering:
        return None
    return "head" if parser.is_in_head else "idle"
