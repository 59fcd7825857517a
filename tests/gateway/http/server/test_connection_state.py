"""The table of a connection's life, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

from gateway.http.server.connection_state import (
    BUSY,
    TABLE,
    UNUSED,
    ConnectionEvent,
    ConnectionState,
    diagram,
)
from tests.fakes.life_tables import Life, documented_diagrams, says


@dataclass(frozen=True)
class Flags:
    """What is so of a connection, one word each. `promises`: the answer that is given lets another
    request follow.
    """

    has_come: bool = False
    is_answering: bool = False
    promises: bool = False
    takes_one: bool = False
    is_last: bool = False
    is_closing: bool = False

    def possible(self) -> set[ConnectionEvent]:
        """A drain looks at connections once, and lets those that are unused take one request."""
        if self.is_closing:
            return {ConnectionEvent.END_SOON}
        events = {ConnectionEvent.END_SOON, ConnectionEvent.CLOSE}
        if not self.is_answering:
            events.add(ConnectionEvent.REQUEST)
        if self.promises:
            events.add(ConnectionEvent.ANSWERED)
        if not (self.has_come or self.takes_one or self.is_last):
            events.add(ConnectionEvent.TAKE_ONE)
        return events

    def after(self, event: ConnectionEvent) -> "Flags":
        match event:
            case ConnectionEvent.REQUEST:
                keeps = not (self.takes_one or self.is_last)
                return replace(self, has_come=True, is_answering=True, promises=keeps)
            case ConnectionEvent.ANSWERED:
                return replace(self, is_answering=False, promises=False)
            case ConnectionEvent.TAKE_ONE:
                return replace(self, takes_one=True)
            case ConnectionEvent.END_SOON:
                return replace(self, is_last=True)
            case ConnectionEvent.CLOSE:
                return replace(self, is_closing=True)


def _agrees(state: ConnectionState, flags: Flags) -> bool:
    """Whether the state says what the flags say."""
    waits = not (flags.is_answering or flags.is_closing)
    answers = flags.is_answering and not flags.is_closing
    ends = flags.is_last or flags.takes_one
    said = {
        ConnectionState.FRESH: waits and not (flags.has_come or ends),
        ConnectionState.SINGLE: waits and flags.takes_one and not flags.is_last,
        ConnectionState.IDLE: waits and flags.has_come and not ends,
        ConnectionState.ENDING: waits and flags.is_last,
        ConnectionState.ANSWERING: answers and flags.promises and not flags.is_last,
        ConnectionState.FINISHING: answers and flags.promises and flags.is_last,
        ConnectionState.LAST: answers and not flags.promises,
        ConnectionState.CLOSING: flags.is_closing,
    }
    return says(said, state)


LIFE = Life(TABLE, ConnectionState.FRESH, Flags(), _agrees)


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    LIFE.check_walks()


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    LIFE.check_faults()


def _groups(state: ConnectionState, flags: Flags) -> None:
    assert (state in BUSY) == (flags.is_answering or flags.is_closing)
    is_over = flags.is_last or flags.is_closing
    assert (state in UNUSED) == (not flags.has_come and not is_over)


TestLives = LIFE.machine(20, also=_groups)


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`gateway.http.server.connection_state.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
