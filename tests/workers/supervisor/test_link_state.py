"""The table of a link's life, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

from tests.fakes.life_tables import Life, documented_diagrams, says
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
    return says(said, state)


LIFE = Life(TABLE, LinkState.DIALLING, Flags(), _agrees)


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    LIFE.check_walks()


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    LIFE.check_faults()


def _groups(state: LinkState, flags: Flags) -> None:
    assert (state in CONNECTED) == (flags.is_up and not flags.is_welcome)
    assert (state in FORMER) == flags.owes_farewell


TestLives = LIFE.machine(20, also=_groups)


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`workers.supervisor.link_state.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
