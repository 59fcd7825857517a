"""The life of one response on its connection: its states, and what leads from one to another.

Owns the table of states that an exchange follows. Must not know bytes, sockets or the app.
`diagram` prints the table for docs/architecture.md.
"""

from enum import auto
from typing import Final, NoReturn

from protocol.life_tables import LifeEnum, LifeTable


class ResponseState(LifeEnum):
    """Where a response is in its life."""

    UNOPENED = auto()
    """The app has given no head."""
    HELD = auto()
    """The head is given, and leaves with the first part or the end."""
    CHUNKED = auto()
    """Parts are being sent, each as a chunk of its own."""
    MEASURED = auto()
    """Parts are being sent. The peer knows the length of the body, or that there is none."""
    UNMEASURED = auto()
    """Parts are being sent. Only the end of the connection tells the peer where the body ends."""
    ENDED = auto()
    """The app has given the whole response."""


class ResponseEvent(LifeEnum):
    """An event of a response's life: what the app sends."""

    OPEN = "the app gives its head"
    FORGET = "the app failed before anything left"
    RESPOND = "the app gives it in one piece"
    CHUNK = "a chunk leaves"
    PIECE = "a part of a known length leaves"
    STRETCH = "a part of an unknown length leaves"
    LAST = "the last part leaves"


UNSENT: Final = (ResponseState.UNOPENED, ResponseState.HELD)
"""No byte has left, so that an error can be the response."""

# Members that every response meets, by names of this module (see `LifeEnum`).
UNOPENED: Final = ResponseState.UNOPENED
HELD: Final = ResponseState.HELD
CHUNKED: Final = ResponseState.CHUNKED
UNMEASURED: Final = ResponseState.UNMEASURED
ENDED: Final = ResponseState.ENDED
OPEN: Final = ResponseEvent.OPEN
RESPOND: Final = ResponseEvent.RESPOND
CHUNK: Final = ResponseEvent.CHUNK
PIECE: Final = ResponseEvent.PIECE
STRETCH: Final = ResponseEvent.STRETCH
LAST: Final = ResponseEvent.LAST


class _Table(LifeTable[ResponseState, ResponseEvent]):
    """The table. An event that a state does not allow raises `ValueError` in the app."""

    def __missing__(self, pair: tuple[ResponseState, ResponseEvent]) -> NoReturn:
        if pair[1] in {ResponseEvent.OPEN, ResponseEvent.RESPOND}:
            raise ValueError("the response has begun already")
        raise ValueError("a response's parts come between its begin and its end")


def _table() -> _Table:
    s, e = ResponseState, ResponseEvent
    on_the_way = {e.CHUNK: s.CHUNKED, e.PIECE: s.MEASURED, e.STRETCH: s.UNMEASURED}
    table = _Table(
        {
            (s.UNOPENED, e.OPEN): s.HELD,
            (s.UNOPENED, e.RESPOND): s.ENDED,
            (s.UNOPENED, e.FORGET): s.UNOPENED,
            (s.HELD, e.FORGET): s.UNOPENED,
            (s.HELD, e.LAST): s.ENDED,
        }
    )
    for event, state in on_the_way.items():
        table |= {(s.HELD, event): state, (state, event): state, (state, e.LAST): s.ENDED}
    return table


TABLE: Final = _table()


def diagram() -> str:
    """The table, without what changes nothing."""
    return TABLE.diagram(ResponseState.UNOPENED, ends=(ResponseState.ENDED,))
