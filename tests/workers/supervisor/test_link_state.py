"""The table of a link's life, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.life_tables import ImpossibleEventError
from tests.fakes.life_tables import disagreement, documented_diagrams, verdicts
from workers.supervisor.link_state import (
    CONNECTED,
    FORMER,
    TABLE,
    LinkEvent,
    LinkState,
    diagram,
)


@dataclass(frozen=True)
class Flags:
    """What is so of a link, one word each."""

    is_up: bool = False
    is_welcome: bool = False
    owes_farewell: bool = False

    def possible(self) -> set[LinkEvent]:
        """A link that is welcome is dropped before anything else happens to it."""
        if self.is_welcome:
            return {LinkEvent.DROP}
        events = {LinkEvent.UP, LinkEvent.DOWN}
        if self.is_up:
            events.add(LinkEvent.REGISTER)
            if not self.owes_farewell:
                events.add(LinkEvent.WELCOME)
        return events

    def after(self, event: LinkEvent) -> "Flags":
        match event:
            case LinkEvent.UP | LinkEvent.DOWN:
                return replace(self, is_up=event is LinkEvent.UP)
            case LinkEvent.REGISTER:
                return replace(self, owes_farewell=False)
            case LinkEvent.WELCOME:
                return replace(self, is_welcome=True)
            case LinkEvent.DROP:
                return replace(self, is_welcome=False, owes_farewell=True)


def _agrees(state: LinkState, flags: Flags) -> bool:
    """Whether the state says what the flags say."""
    said = {
        LinkState.DIALLING: not (flags.is_up or flags.owes_farewell),
        LinkState.REGISTERING: flags.is_up and not (flags.is_welcome or flags.owes_farewell),
        LinkState.JOINED: flags.is_up and flags.is_welcome,
        LinkState.DROPPED: flags.is_up and flags.owes_farewell,
        LinkState.LOST: not flags.is_up and flags.owes_farewell,
    }
    return [one for one, is_so in said.items() if is_so] == [state]


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    assert disagreement(TABLE, LinkEvent, (LinkState.DIALLING, Flags()), _agrees) is None


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    found = verdicts(TABLE, LinkEvent, (LinkState.DIALLING, Flags()), _agrees)
    assert all(found.values())
    assert len(found) > len(TABLE) * (len(LinkState) - 1)


class LinkMachine(RuleBasedStateMachine):
    """Whole lives, in any order of what can happen."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.flags = LinkState.DIALLING, Flags()

    @rule(event=st.sampled_from(LinkEvent))
    def happens(self, event: LinkEvent) -> None:
        if event in self.flags.possible():
            self.state = TABLE[self.state, event]
            self.flags = self.flags.after(event)
            return
        with pytest.raises(ImpossibleEventError, match=f"^{event.name} in {self.state.name}$"):
            TABLE[self.state, event]

    @invariant()
    def agrees(self) -> None:
        assert _agrees(self.state, self.flags)
        assert (self.state in CONNECTED) == (self.flags.is_up and not self.flags.is_welcome)
        assert (self.state in FORMER) == self.flags.owes_farewell


TestLives = LinkMachine.TestCase
TestLives.settings = settings(
    max_examples=max(60, settings().max_examples // 10), stateful_step_count=20, deadline=None
)


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`workers.supervisor.link_state.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
