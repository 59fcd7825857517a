"""The life of a request at workers: its states, and what leads from one to another.

Owns the table of states, which sequence runs and relay runs follow (`try_loop.py`). Must not know
workers, messages or clocks. `diagram` prints the table for docs/architecture.md.
"""

from enum import auto
from typing import Final

from protocol.life_tables import LifeEnum, LifeTable


class TryState(LifeEnum):
    """The state of a request at workers."""

    ASKING = auto()
    """No worker has the request. The dispatcher is asked for a place."""
    PLACED = auto()
    """The try has a place, and the worker has not been told yet."""
    PREFILLING = auto()
    """A worker has the request, and has not sent any part of the answer."""
    BEGUN = auto()
    """A part of the answer has come from the worker."""
    PROVEN = auto()
    """Enough has come to clear the request and the worker."""
    BUSY = auto()
    """The worker had no room, which is no failure. The ticket asks for another place."""
    LOST = auto()
    """The place is lost. Another worker continues behind the tokens that have come."""
    ABSENT = auto()
    """The engine lacks the path or the model that is asked for."""
    DISTRUSTED = auto()
    """The worker broke the protocol about the request and does not get it again."""
    CUT = auto()
    """The engine broke an answer of text off. Only one that can go on with it is asked."""
    COMPLETE = auto()
    """The whole answer has come, and its place is still held."""
    ENDED = auto()
    """No worker has the request, and none is asked any more."""


class TryEvent(LifeEnum):
    """An event of a request at workers."""

    PLACE = "a place is found"
    SUBMIT = "the worker is told"
    PART = "a first part comes"
    PROOF = "enough has come"
    LAST = "the answer is whole"
    REJECT = "it has no room"
    LOSE = "the place is lost"
    LACK = "the engine has nothing there"
    DISTRUST = "the worker breaks the protocol"
    BREAK = "the answer breaks off"
    ASK = "another place is asked for"
    SUFFICE = "nothing is missing"
    HAND_OVER = "providers answer"
    END = "an error, a client that leaves, or its own end"


WORKING: Final = (TryState.PREFILLING, TryState.BEGUN, TryState.PROVEN)
"""States in which a worker has the request."""
UNPLACED: Final = (
    TryState.BUSY,
    TryState.LOST,
    TryState.ABSENT,
    TryState.DISTRUSTED,
    TryState.CUT,
)
"""A place was tried in vain, and another one is due."""
OVER: Final = (TryState.COMPLETE, TryState.ENDED)
"""States in which nothing more is asked of any worker."""

# Members that every request meets, by names of this module (see `LifeEnum`).
ASKING: Final = TryState.ASKING
PREFILLING: Final = TryState.PREFILLING
COMPLETE: Final = TryState.COMPLETE
PLACE: Final = TryEvent.PLACE
SUBMIT: Final = TryEvent.SUBMIT
PART: Final = TryEvent.PART
PROOF: Final = TryEvent.PROOF
LAST: Final = TryEvent.LAST
END: Final = TryEvent.END


def _table() -> LifeTable[TryState, TryEvent]:
    s, e = TryState, TryEvent
    table = LifeTable(
        {
            (s.ASKING, e.PLACE): s.PLACED,
            (s.ASKING, e.HAND_OVER): s.ENDED,
            (s.PLACED, e.SUBMIT): s.PREFILLING,
            (s.PLACED, e.LOSE): s.LOST,  # lost before the worker was told
            (s.PREFILLING, e.PART): s.BEGUN,
            (s.BEGUN, e.PROOF): s.PROVEN,
            (s.LOST, e.SUFFICE): s.ENDED,
            (s.DISTRUSTED, e.SUFFICE): s.ENDED,  # what came before can be trusted
        }
    )
    # A worker's own order of messages is not trusted: it may reject what it has begun.
    for state in WORKING:
        table |= {
            (state, e.LAST): s.COMPLETE,
            (state, e.REJECT): s.BUSY,
            (state, e.LOSE): s.LOST,
            (state, e.LACK): s.ABSENT,
            (state, e.DISTRUST): s.DISTRUSTED,
            (state, e.BREAK): s.CUT,
        }
    table |= {(state, e.ASK): s.ASKING for state in UNPLACED}
    table |= {(state, e.END): s.ENDED for state in TryState}
    return table


TABLE: Final = _table()


def diagram() -> str:
    """The table, without `END`, which leads from every state to `ENDED`."""
    return TABLE.diagram(TryState.ASKING, without=TryEvent.END, ends=OVER)
