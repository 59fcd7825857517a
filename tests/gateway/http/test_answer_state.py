"""The table of an answer's life, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

from gateway.http.answer_state import (
    DEAF,
    STREAMED,
    TABLE,
    UNSENT,
    WHOLE,
    AnswerEvent,
    AnswerState,
    diagram,
)
from tests.fakes.life_tables import Life, documented_diagrams, says


@dataclass(frozen=True)
class Flags:
    """What is so of an answer, one word each."""

    is_open: bool = False
    has_content: bool = False
    is_whole: bool = False
    is_replaced: bool = False
    has_ended: bool = False

    def possible(self) -> set[AnswerEvent]:
        """A silence is noticed while nothing is sent; content comes where it is sent."""
        events = {AnswerEvent.FINISH, AnswerEvent.REPLACE, AnswerEvent.END}
        if not self.is_open and not self.has_ended:
            events.add(AnswerEvent.SILENCE)
        if not self.is_replaced and not self.has_ended:
            events.add(AnswerEvent.CONTENT)
        return events

    def after(self, event: AnswerEvent) -> "Flags":
        if self.has_ended:
            return self
        match event:
            case AnswerEvent.END:
                return Flags(has_ended=True)
            case AnswerEvent.REPLACE:
                return replace(self, is_replaced=True)
            case AnswerEvent.FINISH:
                return replace(self, is_whole=True)
            case AnswerEvent.SILENCE:
                return self if self.is_replaced else replace(self, is_open=True)
            case AnswerEvent.CONTENT:
                return replace(self, is_open=True, has_content=True)


def _agrees(state: AnswerState, flags: Flags) -> bool:
    """Whether the state says what the flags say."""
    goes_on = not (flags.is_replaced or flags.has_ended)
    is_early = goes_on and not flags.is_whole
    said = {
        AnswerState.WITHHELD: is_early and not flags.is_open,
        AnswerState.OPEN: is_early and flags.is_open and not flags.has_content,
        AnswerState.SPEAKING: is_early and flags.has_content,
        AnswerState.KEPT: goes_on and flags.is_whole and not flags.is_open,
        AnswerState.LAST: goes_on and flags.is_whole and flags.is_open,
        AnswerState.REPLACED: flags.is_replaced and not flags.is_open and not flags.has_ended,
        AnswerState.CUT: flags.is_replaced and flags.is_open and not flags.has_ended,
        AnswerState.ENDED: flags.has_ended,
    }
    return says(said, state)


LIFE = Life(TABLE, AnswerState.WITHHELD, Flags(), _agrees)


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    LIFE.check_walks()


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    LIFE.check_faults()


def _groups(state: AnswerState, flags: Flags) -> None:
    assert (state in UNSENT) == (not flags.is_open and not flags.has_ended)
    is_over = flags.is_replaced or flags.has_ended
    assert (state in DEAF) == is_over
    assert (state in STREAMED) == (flags.is_open and not is_over)
    assert (state in WHOLE) == (flags.is_whole and not is_over)


TestLives = LIFE.machine(20, also=_groups)


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`gateway.http.answer_state.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
