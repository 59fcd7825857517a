"""The two lives of a worker's seat at the table of turns: their states, and what leads from one to
another.

Owns the tables that `turn_taker.py` follows. Must not know engines, memory or clocks. `diagrams`
prints the tables for docs/architecture.md.
"""

from enum import auto
from typing import Final

from protocol.life_tables import LifeEnum, LifeTable


class SeatState(LifeEnum):
    """The state that the table of turns keeps of a worker, beside the state of its engine."""

    SETTLED = auto()
    """The state of the engine is all that the table must know."""
    RISING = auto()
    """The worker has the order to wake, and has not begun yet."""
    MEASURING = auto()
    """The worker's engine is ready and not measured yet: until then nothing moves its memory."""


class SeatEvent(LifeEnum):
    """An event of a seat."""

    RISE = "it gets the order to wake"
    BEGIN = "its wake or its end begins"
    LACK_ROOM = "its device has no room"
    PROVEN = "its engine is ready"
    MEASURED = "its engine is measured"


class SleepTrial(LifeEnum):
    """Whether the engine's sleep without an end is tried."""

    NEEDLESS = auto()
    """No trial is needed: the way to sleep is known, or an operator's change will show it."""
    DUE = auto()
    """The engine has a way to sleep that was never tried."""
    BEGUN = auto()
    """The engine sleeps by that way for the first time, and is woken to see whether its wake
    works.
    """


class TrialEvent(LifeEnum):
    """An event that begins or ends a trial of a sleep."""

    FIND = "a way is found that was never tried"
    LACK = "no such way is found"
    SLEEP = "it falls asleep"
    WISH = "an operator asks for a change"


def _seats() -> LifeTable[SeatState, SeatEvent]:
    s, e = SeatState, SeatEvent
    return LifeTable(
        {
            (s.SETTLED, e.RISE): s.RISING,
            (s.RISING, e.BEGIN): s.SETTLED,
            (s.RISING, e.LACK_ROOM): s.SETTLED,
            (s.SETTLED, e.PROVEN): s.MEASURING,
            (s.MEASURING, e.MEASURED): s.SETTLED,
            # The engine has died, and the next one is measured separately.
            (s.MEASURING, e.RISE): s.RISING,
            (s.MEASURING, e.PROVEN): s.MEASURING,
            # An event without anything begun, or a late end of a look at the device, changes
            # nothing.
            (s.RISING, e.RISE): s.RISING,
            (s.SETTLED, e.BEGIN): s.SETTLED,
            (s.MEASURING, e.BEGIN): s.MEASURING,
            (s.SETTLED, e.LACK_ROOM): s.SETTLED,
            (s.MEASURING, e.LACK_ROOM): s.MEASURING,
            (s.SETTLED, e.MEASURED): s.SETTLED,
            (s.RISING, e.MEASURED): s.RISING,
        }
    )


def _trials() -> LifeTable[SleepTrial, TrialEvent]:
    s, e = SleepTrial, TrialEvent
    table = LifeTable(
        {
            (s.DUE, e.SLEEP): s.BEGUN,
            (s.BEGUN, e.SLEEP): s.NEEDLESS,  # the first sleep and its wake are over
            (s.NEEDLESS, e.SLEEP): s.NEEDLESS,
            (s.DUE, e.LACK): s.NEEDLESS,
            (s.NEEDLESS, e.LACK): s.NEEDLESS,
            (s.BEGUN, e.LACK): s.BEGUN,
        }
    )
    for state in SleepTrial:
        table |= {(state, e.FIND): s.DUE, (state, e.WISH): s.NEEDLESS}
    return table


SEATS: Final = _seats()
TRIALS: Final = _trials()


def diagrams() -> tuple[str, str]:
    """The table of a seat, and that of its trial."""
    return (
        SEATS.diagram(SeatState.SETTLED, direction="LR"),
        TRIALS.diagram(SleepTrial.NEEDLESS, direction="LR"),
    )
