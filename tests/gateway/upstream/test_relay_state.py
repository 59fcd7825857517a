"""The table of a provider's stream, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.upstream.relay_state import TABLE, RelayEvent, RelayState, diagram
from protocol.life_tables import ImpossibleEventError
from tests.fakes.life_tables import disagreement, documented_diagrams, verdicts


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
    return [one for one, is_so in said.items() if is_so] == [state]


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    assert disagreement(TABLE, RelayEvent, (RelayState.HELD, Flags()), _agrees) is None


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    found = verdicts(TABLE, RelayEvent, (RelayState.HELD, Flags()), _agrees)
    assert all(found.values())
    assert len(found) > len(TABLE) * (len(RelayState) - 1)


class RelayMachine(RuleBasedStateMachine):
    """Whole lives, in any order of what can happen."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.flags = RelayState.HELD, Flags()

    @rule(event=st.sampled_from(RelayEvent))
    def happens(self, event: RelayEvent) -> None:
        if event in self.flags.possible():
            self.state = TABLE[self.state, event]
            self.flags = self.flags.after(event)
            return
        with pytest.raises(ImpossibleEventError, match=f"^{event.name} in {self.state.name}$"):
            TABLE[self.state, event]

    @invariant()
    def agrees(self) -> None:
        assert _agrees(self.state, self.flags)


TestLives = RelayMachine.TestCase
TestLives.settings = settings(
    max_examples=max(60, settings().max_examples // 10), stateful_step_count=8, deadline=None
)


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`gateway.upstream.relay_state.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
