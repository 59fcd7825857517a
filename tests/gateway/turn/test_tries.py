"""The table of a request's life at workers, walked beside a model that keeps flags."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.turn.tries import (
    OVER,
    TABLE,
    UNPLACED,
    WORKING,
    Event,
    ImpossibleEventError,
    State,
    diagram,
)
from tests.fakes.life_tables import disagreement, faults

IN_VAIN = {
    Event.REJECT: "busy",
    Event.LOSE: "lost",
    Event.LACK: "absent",
    Event.BREAK: "cut",
}


@dataclass(frozen=True)
class Flags:
    """What is so of a request, one word each. `failed`: how the place was tried in vain."""

    has_place: bool = False
    is_told: bool = False
    has_part: bool = False
    is_proven: bool = False
    is_whole: bool = False
    is_over: bool = False
    failed: str = ""

    @property
    def works(self) -> bool:
        """Whether a worker has the request, and its answer is not whole."""
        return self.is_told and not (self.failed or self.is_whole or self.is_over)

    def possible(self) -> set[Event]:
        events = {Event.END}
        if self.is_over or self.is_whole:
            return events
        if self.failed:
            return events | {Event.ASK} | ({Event.SUFFICE} if self.failed == "lost" else set())
        if not self.has_place:
            return events | {Event.PLACE, Event.HAND_OVER}
        if not self.is_told:
            return events | {Event.SUBMIT, Event.LOSE}
        if not self.has_part:
            events.add(Event.PART)
        elif not self.is_proven:
            events.add(Event.PROOF)
        return events | {Event.LAST, *IN_VAIN}

    def after(self, event: Event) -> "Flags":
        match event:
            case Event.END | Event.HAND_OVER | Event.SUFFICE:
                return Flags(is_over=True)
            case Event.ASK:
                return Flags()
            case Event.PLACE:
                return Flags(has_place=True)
            case Event.SUBMIT:
                return replace(self, is_told=True)
            case Event.PART:
                return replace(self, has_part=True)
            case Event.PROOF:
                return replace(self, is_proven=True)
            case Event.LAST:
                return replace(self, is_whole=True)
            case _:
                return replace(self, failed=IN_VAIN[event])


def _agrees(state: State, flags: Flags) -> bool:
    """Whether the state says what the flags say."""
    said = {
        State.ASKING: not (flags.has_place or flags.is_over),
        State.PLACED: flags.has_place and not (flags.is_told or flags.failed),
        State.PREFILLING: flags.works and not flags.has_part,
        State.BEGUN: flags.works and flags.has_part and not flags.is_proven,
        State.PROVEN: flags.works and flags.is_proven,
        State.BUSY: flags.failed == "busy",
        State.LOST: flags.failed == "lost",
        State.ABSENT: flags.failed == "absent",
        State.CUT: flags.failed == "cut",
        State.COMPLETE: flags.is_whole,
        State.ENDED: flags.is_over,
    }
    return [one for one, is_so in said.items() if is_so] == [state]


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    assert disagreement(TABLE, Event, (State.ASKING, Flags()), _agrees) is None


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    found = {name: disagreement(table, Event, (State.ASKING, Flags()), _agrees)
             for name, table in faults(TABLE, State, Event)}  # fmt: skip
    assert all(found.values())
    assert len(found) > len(TABLE) * (len(State) - 1)


class TriesMachine(RuleBasedStateMachine):
    """Long lives, with many places tried in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.flags = State.ASKING, Flags()

    @rule(draw=st.data())
    def happens(self, draw: st.DataObject) -> None:
        events = sorted(self.flags.possible() - {Event.END}, key=lambda event: event.name)
        event = draw.draw(st.sampled_from(events or [Event.END]))
        self.state = TABLE[self.state, event]
        self.flags = self.flags.after(event)

    @rule(event=st.sampled_from(Event))
    def cannot_happen(self, event: Event) -> None:
        if event in self.flags.possible():
            return
        with pytest.raises(ImpossibleEventError, match=f"^{event.name} in {self.state.name}$"):
            TABLE[self.state, event]

    @invariant()
    def agrees(self) -> None:
        assert _agrees(self.state, self.flags)


TestLives = TriesMachine.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_groups_of_states() -> None:
    """A worker has the request, a place was tried in vain, or nothing more is asked."""
    assert {*WORKING} == {state for state in State if (state, Event.LAST) in TABLE}
    assert {*UNPLACED} == {state for state in State if (state, Event.ASK) in TABLE}
    only_ends = {state for state in State if {e for s, e in TABLE if s is state} == {Event.END}}
    assert {*OVER} == only_ends


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`gateway.turn.tries.diagram` prints it anew."""
    page = Path(__file__).parents[3] / "docs" / "architecture.md"
    blocks = re.findall(r"```mermaid\n(.*?)\n```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert diagram() in blocks
