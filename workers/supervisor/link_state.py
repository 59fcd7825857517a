"""The life of the link to one gateway: its states, and what leads from one to another.

Owns the table of states that a link follows. Must not know sockets, messages or clocks. `diagram`
prints the table for docs/architecture.md.
"""

from enum import auto
from typing import Final

from protocol.life_tables import LifeEnum, LifeTable


class LinkState(LifeEnum):
    """The state of a link."""

    DIALLING = auto()
    """There is no connection, and the gateway knows of no work here."""
    REGISTERING = auto()
    """There is a connection, and the gateway is asked again and again to welcome this worker."""
    JOINED = auto()
    """The gateway has welcomed this worker."""
    DROPPED = auto()
    """The gateway's work is aborted, and a farewell has to tell the gateway so before any other
    message.
    """
    LOST = auto()
    """Like `DROPPED`, but without a connection."""


class LinkEvent(LifeEnum):
    """An event of a link."""

    UP = "a connection is made"
    REGISTER = "this worker registers"
    WELCOME = "the gateway welcomes it"
    DROP = "the gateway is given up"
    DOWN = "the connection is lost"


CONNECTED: Final = (LinkState.REGISTERING, LinkState.DROPPED)
"""The gateway can be asked for a welcome."""
FORMER: Final = (LinkState.DROPPED, LinkState.LOST)
"""The gateway had welcomed this worker, and is owed a farewell."""


def _table() -> LifeTable[LinkState, LinkEvent]:
    s, e = LinkState, LinkEvent
    return LifeTable(
        {
            (s.DIALLING, e.UP): s.REGISTERING,
            (s.LOST, e.UP): s.DROPPED,
            (s.REGISTERING, e.REGISTER): s.REGISTERING,
            (s.DROPPED, e.REGISTER): s.REGISTERING,
            # Only behind its own registration: another welcome is of one before the farewell.
            (s.REGISTERING, e.WELCOME): s.JOINED,
            (s.JOINED, e.DROP): s.DROPPED,
            (s.REGISTERING, e.DOWN): s.DIALLING,
            (s.DROPPED, e.DOWN): s.LOST,
            # A socket may connect anew before it says that the connection was lost.
            **{(state, e.UP): state for state in CONNECTED},
            **{(state, e.DOWN): state for state in (s.DIALLING, s.LOST)},
        }
    )


TABLE: Final = _table()


def diagram() -> str:
    """The table, without what changes nothing."""
    return TABLE.diagram(LinkState.DIALLING)
