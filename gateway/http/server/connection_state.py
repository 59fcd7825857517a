"""The life of one connection: its states, and what leads from one to another.

Owns the table of states, which says when a connection takes another request. Must not know
sockets, requests or the app. `diagram` prints the table for docs/architecture.md.
"""

from enum import auto
from typing import Final

from protocol.life_tables import LifeEnum, LifeTable


class ConnectionState(LifeEnum):
    """Where a connection is in its life."""

    FRESH = auto()
    """No request has come, and any number may."""
    SINGLE = auto()
    """No request has come, and one may."""
    ANSWERING = auto()
    """A request is answered, and any number may follow."""
    IDLE = auto()
    """Any number of requests may follow those that are answered."""
    FINISHING = auto()
    """A request is answered, and one may follow if it has arrived, even in part."""
    ENDING = auto()
    """One request may follow if it has arrived, even in part."""
    LAST = auto()
    """The last request is answered."""
    CLOSING = auto()
    """No request is taken. The last bytes leave."""


class ConnectionEvent(LifeEnum):
    """An event of a connection: what happens to it, or what its owner asks for."""

    REQUEST = "a request is taken"
    ANSWERED = "its answer lets another follow"
    TAKE_ONE = "the server drains"
    END_SOON = "the connection is to end"
    CLOSE = "no other request follows"


UNUSED: Final = (ConnectionState.FRESH, ConnectionState.SINGLE)
"""No request has come."""
BUSY: Final = frozenset(
    (
        ConnectionState.ANSWERING,
        ConnectionState.FINISHING,
        ConnectionState.LAST,
        ConnectionState.CLOSING,
    )
)
"""The server, not the peer, is to act."""

# Members that every request meets, by names of this module (see `LifeEnum`).
ANSWERING: Final = ConnectionState.ANSWERING
ENDING: Final = ConnectionState.ENDING
REQUEST: Final = ConnectionEvent.REQUEST
ANSWERED: Final = ConnectionEvent.ANSWERED


def _table() -> LifeTable[ConnectionState, ConnectionEvent]:
    s, e = ConnectionState, ConnectionEvent
    table = LifeTable(
        {
            (s.FRESH, e.REQUEST): s.ANSWERING,
            (s.IDLE, e.REQUEST): s.ANSWERING,
            (s.SINGLE, e.REQUEST): s.LAST,
            (s.ENDING, e.REQUEST): s.LAST,
            (s.ANSWERING, e.ANSWERED): s.IDLE,
            (s.FINISHING, e.ANSWERED): s.ENDING,
            (s.FRESH, e.TAKE_ONE): s.SINGLE,
            (s.FRESH, e.END_SOON): s.ENDING,
            (s.SINGLE, e.END_SOON): s.ENDING,
            (s.IDLE, e.END_SOON): s.ENDING,
            # What the answer promises may have left already.
            (s.ANSWERING, e.END_SOON): s.FINISHING,
        }
    )
    for state in (s.FINISHING, s.ENDING, s.LAST, s.CLOSING):
        table[state, e.END_SOON] = state
    for state in {*s} - {s.CLOSING}:
        table[state, e.CLOSE] = s.CLOSING
    return table


TABLE: Final = _table()


def diagram() -> str:
    """The table, without `CLOSE`, which leads from every state to `CLOSING`."""
    return TABLE.diagram(
        ConnectionState.FRESH, without=ConnectionEvent.CLOSE, ends=(ConnectionState.CLOSING,)
    )
