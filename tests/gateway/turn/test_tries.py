"""The table of a request's life at workers, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

from gateway.turn.tries import (
    OVER,
    TABLE,
    UNPLACED,
    WORKING,
    TryEvent,
    TryState,
    diagram,
)
from tests.fakes.life_tables import Life, documented_diagrams, says

IN_VAIN = {
    TryEvent.REJECT: "busy",
    TryEvent.LOSE: "lost",
    TryEvent.LACK: "absent",
    TryEvent.DISTRUST: "distrusted",
    TryEvent.BREAK: "cut",
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

    def possible(self) -> set[TryEvent]:
        events = {TryEvent.END}
        if self.is_over or self.is_whole:
            return events
        if self.failed:
            may_be_whole = self.failed in ("lost", "distrusted")
            return events | {TryEvent.ASK} | ({TryEvent.SUFFICE} if may_be_whole else set())
        if not self.has_place:
            return events | {TryEvent.PLACE, TryEvent.HAND_OVER}
        if not self.is_told:
            return events | {TryEvent.SUBMIT, TryEvent.LOSE}
        if not self.has_part:
            events.add(TryEvent.PART)
        elif not self.is_proven:
            events.add(TryEvent.PROOF)
        return events | {TryEvent.LAST, *IN_VAIN}

    def after(self, event: TryEvent) -> "Flags":
        match event:
            case TryEvent.END | TryEvent.HAND_OVER | TryEvent.SUFFICE:
                return Flags(is_over=True)
            case TryEvent.ASK:
                return Flags()
            case TryEvent.PLACE:
                return Flags(has_place=True)
            case TryEvent.SUBMIT:
                return replace(self, is_told=True)
            case TryEvent.PART:
                return replace(self, has_part=True)
            case TryEvent.PROOF:
                return replace(self, is_proven=True)
            case TryEvent.LAST:
                return replace(self, is_whole=True)
            case _:
                return replace(self, failed=IN_VAIN[event])


def _agrees(state: TryState, flags: Flags) -> bool:
    """Whether the state says what the flags say."""
    said = {
        TryState.ASKING: not (flags.has_place or flags.is_over),
        TryState.PLACED: flags.has_place and not (flags.is_told or flags.failed),
        TryState.PREFILLING: flags.works and not flags.has_part,
        TryState.BEGUN: flags.works and flags.has_part and not flags.is_proven,
        TryState.PROVEN: flags.works and flags.is_proven,
        TryState.BUSY: flags.failed == "busy",
        TryState.LOST: flags.failed == "lost",
        TryState.ABSENT: flags.failed == "absent",
        TryState.DISTRUSTED: flags.failed == "distrusted",
        TryState.CUT: flags.failed == "cut",
        TryState.COMPLETE: flags.is_whole,
        TryState.ENDED: flags.is_over,
    }
    return says(said, state)


LIFE = Life(TABLE, TryState.ASKING, Flags(), _agrees)


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    LIFE.check_walks()


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    LIFE.check_faults()


TestLives = LIFE.machine(40, last=TryEvent.END)


def test_the_groups_of_states() -> None:
    """A worker has the request, a place was tried in vain, or nothing more is asked."""
    assert {*WORKING} == {state for state in TryState if (state, TryEvent.LAST) in TABLE}
    assert {*UNPLACED} == {state for state in TryState if (state, TryEvent.ASK) in TABLE}
    only_ends = {
        state for state in TryState if {e for s, e in TABLE if s is state} == {TryEvent.END}
    }
    assert {*OVER} == only_ends


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`gateway.turn.tries.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
