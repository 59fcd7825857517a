"""The table of a provider's stream, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

from gateway.upstream.relay_state import TABLE, RelayEvent, RelayState, diagram
from tests.fakes.life_tables import Life, documented_diagrams, says


@dataclass(frozen=True)
class Flags:
    """What is so of a stream, one word each. `looks`: any chunk may have another form."""

    has_begun: bool = False
    looks: bool = True
    has_messages: bool = False
    is_over: bool = False

    def possible(self) -> set[RelayEvent]:
        """A stream begins once, and ends once after that."""
        if self.is_over:
            return set()
        return {RelayEvent.DONE} if self.has_begun else {*RelayEvent} - {RelayEvent.DONE}

    def after(self, event: RelayEvent) -> "Flags":
        if event is RelayEvent.DONE:
            return Flags(has_begun=True, is_over=True)
        is_other = event is RelayEvent.MESSAGE
        looks = event is not RelayEvent.CONTENT
        return replace(self, has_begun=True, looks=looks, has_messages=is_other)


def _agrees(state: RelayState, flags: Flags) -> bool:
    """Whether the state says what the flags say."""
    goes_on = flags.has_begun and not flags.is_over
    said = {
        RelayState.HELD: not flags.has_begun,
        RelayState.USUAL: goes_on and not flags.looks,
        RelayState.VARIED: goes_on and flags.looks and not flags.has_messages,
        RelayState.MESSAGES: goes_on and flags.has_messages,
        RelayState.OVER: flags.is_over,
    }
    return says(said, state)


LIFE = Life(TABLE, RelayState.HELD, Flags(), _agrees)


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    LIFE.check_walks()


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    LIFE.check_faults()


TestLives = LIFE.machine(8)


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`gateway.upstream.relay_state.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
