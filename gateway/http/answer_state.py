"""The life of an answer on its way to the client: its states, and what leads from one to another.

Owns the table of states, which streams and whole answers follow. Must not know events of turns,
formats or sockets. `diagram` prints the table for docs/architecture.md.
"""

from enum import auto
from typing import Final

from protocol.life_tables import LifeEnum, LifeTable


class AnswerState(LifeEnum):
    """Where an answer is in its life."""

    WITHHELD = auto()
    """Nothing is sent, so that a refusal can still be an HTTP status."""
    OPEN = auto()
    """The head is sent, because the client has waited for long, and no content."""
    SPEAKING = auto()
    """Content is sent."""
    KEPT = auto()
    """The answer is whole, and nothing is sent."""
    LAST = auto()
    """The answer is whole, and the head is sent. The end leaves with the usage."""
    REPLACED = auto()
    """Nothing is sent. An error, or the body of a provider, is the whole response."""
    CUT = auto()
    """The head is sent. An error, or the body of a provider, ends the stream."""
    ENDED = auto()
    """Everything is sent."""


class AnswerEvent(LifeEnum):
    """An event of an answer's life."""

    SILENCE = "the client has waited for long"
    CONTENT = "content comes"
    FINISH = "its last part comes"
    REPLACE = "an error or another's body comes"
    END = "it is sent to its end"


UNSENT: Final = (AnswerState.WITHHELD, AnswerState.KEPT, AnswerState.REPLACED)
"""No byte has left, not even the head."""
STREAMED: Final = (AnswerState.OPEN, AnswerState.SPEAKING, AnswerState.LAST)
"""The head is sent, and nothing went wrong."""
DEAF: Final = (AnswerState.REPLACED, AnswerState.CUT, AnswerState.ENDED)
"""States in which further parts of the answer are dropped."""
WHOLE: Final = (AnswerState.KEPT, AnswerState.LAST)
"""The last part has come, and nothing went wrong."""

# Members that every answer meets, by names of this module (see `LifeEnum`).
WITHHELD: Final = AnswerState.WITHHELD
OPEN: Final = AnswerState.OPEN
SPEAKING: Final = AnswerState.SPEAKING
REPLACED: Final = AnswerState.REPLACED
CUT: Final = AnswerState.CUT
ENDED: Final = AnswerState.ENDED
CONTENT: Final = AnswerEvent.CONTENT
FINISH: Final = AnswerEvent.FINISH
REPLACE: Final = AnswerEvent.REPLACE
END: Final = AnswerEvent.END


def _table() -> LifeTable[AnswerState, AnswerEvent]:
    s, e = AnswerState, AnswerEvent
    table = LifeTable(
        {
            (s.WITHHELD, e.SILENCE): s.OPEN,
            (s.KEPT, e.SILENCE): s.LAST,
            (s.KEPT, e.CONTENT): s.LAST,
            (s.LAST, e.CONTENT): s.LAST,
            (s.WITHHELD, e.FINISH): s.KEPT,
        }
    )
    for state in (s.WITHHELD, s.OPEN, s.SPEAKING):
        table[state, e.CONTENT] = s.SPEAKING
    for state in (s.OPEN, s.SPEAKING):
        table |= {(state, e.FINISH): s.LAST, (state, e.REPLACE): s.CUT}
    table |= {
        (s.LAST, e.REPLACE): s.CUT,
        (s.WITHHELD, e.REPLACE): s.REPLACED,
        (s.KEPT, e.REPLACE): s.REPLACED,
        # The turn has yet to end: a client that has waited for long gets the response at once.
        (s.REPLACED, e.SILENCE): s.REPLACED,
    }
    for state in (s.KEPT, s.LAST):
        table[state, e.FINISH] = state  # the error of an answer that was begun again
    for state in DEAF:
        table |= {(state, event): state for event in (e.FINISH, e.REPLACE)}
    table |= {(state, e.END): s.ENDED for state in AnswerState}
    return table


TABLE: Final = _table()


def diagram() -> str:
    """The table, without what changes nothing."""
    return TABLE.diagram(AnswerState.WITHHELD, ends=(AnswerState.ENDED,))
