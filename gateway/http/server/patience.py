"""How long a peer's silence or slowness is borne.

Owns what a connection waits for now and until when. Must not know the clock: `now` is an argument.
"""

import math
from typing import Final, Literal

from gateway.http.server.limits import Deadlines
from gateway.http.server.parser import RequestParser
from gateway.http.server.request import Request

Phase = Literal["idle", "head"] | Request | None

_NEVER: Final = math.inf


class Patience:
    """`due_at` is when the peer is overdue with `phase`: with its next request, with a head, or
    with the body of a request. While the server itself is to act, `phase` is None.
    """

    __slots__ = ("_began_at", "_deadlines", "due_at", "phase")

    def __init__(self, deadlines: Deadlines, now: float) -> None:
        self._deadlines = deadlines
        self._began_at = now
        self.phase: Phase = "idle"
        self.due_at = now + deadlines.idle_s

    def observe(self, parser: RequestParser, now: float, *, is_answering: bool) -> None:
        """Something has come, or the server has begun or ended to act."""
        phase = _phase(parser, is_answering=is_answering)
        if phase is not self.phase:
            self.phase = phase
            self._began_at = now
        if phase is None:
            self.due_at = _NEVER
        elif isinstance(phase, Request):
            self.due_at = self._deadlines.body_by(self._began_at, now, phase.num_body_bytes)
        else:
            patience_s = self._deadlines.head_s if phase == "head" else self._deadlines.idle_s
            self.due_at = self._began_at + patience_s


def _phase(parser: RequestParser, *, is_answering: bool) -> Phase:
    if parser.is_full:
        return None
    if parser.body_of is not None:
        return parser.body_of
    if is_answering:
        return None
    return "head" if parser.is_in_head else "idle"
