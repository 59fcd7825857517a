"""The table of a response's life on its connection, walked beside a model that keeps flags."""

from dataclasses import dataclass, replace

from gateway.http.server.response_state import (
    TABLE,
    UNSENT,
    ResponseEvent,
    ResponseState,
    diagram,
)
from tests.fakes.life_tables import Life, documented_diagrams, says

PARTS = (ResponseEvent.CHUNK, ResponseEvent.PIECE, ResponseEvent.STRETCH)


@dataclass(frozen=True)
class Flags:
    """What is so of a response, one word each. `kind`: by which of `PARTS` it leaves."""

    has_head: bool = False
    kind: ResponseEvent | None = None
    has_ended: bool = False

    def possible(self) -> set[ResponseEvent]:
        """One framing holds for all parts; nothing is taken back that has left."""
        if self.has_ended:
            return set()
        if self.kind is not None:
            return {self.kind, ResponseEvent.LAST}
        if self.has_head:
            return {*PARTS, ResponseEvent.LAST, ResponseEvent.FORGET}
        return {ResponseEvent.OPEN, ResponseEvent.RESPOND, ResponseEvent.FORGET}

    def after(self, event: ResponseEvent) -> "Flags":
        match event:
            case ResponseEvent.OPEN:
                return replace(self, has_head=True)
            case ResponseEvent.FORGET:
                return replace(self, has_head=False)
            case ResponseEvent.LAST | ResponseEvent.RESPOND:
                return Flags(has_ended=True)
            case _:
                return replace(self, kind=event)


def _agrees(state: ResponseState, flags: Flags) -> bool:
    """Whether the state says what the flags say."""
    said = {
        ResponseState.UNOPENED: not (flags.has_head or flags.has_ended),
        ResponseState.HELD: flags.has_head and flags.kind is None,
        ResponseState.CHUNKED: flags.kind is ResponseEvent.CHUNK,
        ResponseState.MEASURED: flags.kind is ResponseEvent.PIECE,
        ResponseState.UNMEASURED: flags.kind is ResponseEvent.STRETCH,
        ResponseState.ENDED: flags.has_ended,
    }
    return says(said, state)


LIFE = Life(TABLE, ResponseState.UNOPENED, Flags(), _agrees)


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    LIFE.check_walks()


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    LIFE.check_faults()


def _groups(state: ResponseState, flags: Flags) -> None:
    has_left = flags.kind is not None or flags.has_ended
    assert (state in UNSENT) == (not has_left)


def _refusal(event: ResponseEvent, _: ResponseState) -> tuple[type[Exception], str]:
    """In words for an app that does not keep to the order."""
    begins = event in {ResponseEvent.OPEN, ResponseEvent.RESPOND}
    return ValueError, "has begun already$" if begins else "come between its begin and its end$"


TestLives = LIFE.machine(12, also=_groups, refusal=_refusal)


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`gateway.http.server.response_state.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
