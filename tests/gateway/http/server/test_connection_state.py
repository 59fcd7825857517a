"""The table of a connection's life, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.http.server.connection_state import (
    BUSY,
    TABLE,
    UNUSED,
    ConnectionEvent,
    ConnectionState,
    diagram,
)
from protocol.life_tables import ImpossibleEventError
from tests.fakes.life_tables import disagreement, documented_diagrams, verdicts


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
    return [one for one, is_so in said.items() if is_so] == [state]


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    assert disagreement(TABLE, ConnectionEvent, (ConnectionState.FRESH, Flags()), _agrees) is None


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    found = verdicts(TABLE, ConnectionEvent, (ConnectionState.FRESH, Flags()), _agrees)
    assert all(found.values())
    assert len(found) > len(TABLE) * (len(ConnectionState) - 1)


class ConnectionMachine(RuleBasedStateMachine):
    """Whole lives, in any order of what can happen."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.flags = ConnectionState.FRESH, Flags()

    @rule(event=st.sampled_from(ConnectionEvent))
    def happens(self, event: ConnectionEvent) -> None:
        if event in self.flags.possible():
            self.state = TABLE[self.state, event]
            self.flags = self.flags.after(event)
            return
        with pytest.raises(ImpossibleEventError, match=f"^{event.name} in {self.state.name}$"):
            TABLE[self.state, event]

    @invariant()
    def agrees(self) -> None:
        assert _agrees(self.state, self.flags)
        assert (self.state in BUSY) == (self.flags.is_answering or self.flags.is_closing)
        is_over = self.flags.is_last or self.flags.is_closing
        assert (self.state in UNUSED) == (not self.flags.has_come and not is_over)


TestLives = ConnectionMachine.TestCase
TestLives.settings = settings(
    max_examples=max(60, settings().max_examples // 10), stateful_step_count=20, deadline=None
)


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`gateway.http.server.connection_state.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
