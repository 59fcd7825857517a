"""The life of a provider's stream on its way to the client: its states, and what leads from one to
another.

Owns the table of states that a stream relay follows. Must not know chunks or clients. `diagram`
prints the table for docs/architecture.md.
"""

from enum import auto
from typing import Final

from protocol.life_tables import LifeEnum, LifeTable


class RelayState(LifeEnum):
    """The state of a provider's stream."""

    HELD = auto()
    """Nothing is passed on, so that another provider can be asked."""
    USUAL = auto()
    """The stream is passed on. Its contents are texts in deltas."""
    VARIED = auto()
    """The stream is passed on. Any chunk may have a content in parts."""
    MESSAGES = auto()
    """The stream is passed on. Its chunks have messages where others have deltas."""
    OVER = auto()
    """The end of the stream is passed on."""


class RelayEvent(LifeEnum):
    """An event of a provider's stream."""

    CONTENT = "its first content is a text"
    PARTS = "its first content is in parts"
    MESSAGE = "its first content is in a message"
    FLOOD = "more comes without content than can be held"
    DONE = "its end comes"


# Members that every chunk meets, by names of this module (see `LifeEnum`).
HELD: Final = RelayState.HELD
USUAL: Final = RelayState.USUAL
OVER: Final = RelayState.OVER


def _table() -> LifeTable[RelayState, RelayEvent]:
    s, e = RelayState, RelayEvent
    table = LifeTable(
        {
            (s.HELD, e.CONTENT): s.USUAL,
            (s.HELD, e.PARTS): s.VARIED,
            (s.HELD, e.MESSAGE): s.MESSAGES,
            (s.HELD, e.FLOOD): s.VARIED,
        }
    )
    return LifeTable(table | {(begun, e.DONE): s.OVER for begun in (*table.values(),)})


TABLE: Final = _table()


def diagram() -> str:
    """The table."""
    return TABLE.diagram(RelayState.HELD, ends=(RelayState.OVER,))
