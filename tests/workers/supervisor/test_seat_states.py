"""The tables of a seat and of its trial, walked beside models that keep flags."""

from dataclasses import dataclass, replace

import pytest

from tests.fakes.life_tables import Life, documented_diagrams, says
from workers.supervisor.seat_states import (
    SEATS,
    TRIALS,
    SeatEvent,
    SeatState,
    SleepTrial,
    TrialEvent,
    diagrams,
)


@dataclass(frozen=True)
class SeatFlags:
    """What is so of a seat, one word each."""

    is_rising: bool = False
    is_measuring: bool = False

    def possible(self) -> set[SeatEvent]:
        """An engine whose wake has not begun is not ready."""
        return {*SeatEvent} - ({SeatEvent.PROVEN} if self.is_rising else set())

    def after(self, event: SeatEvent) -> "SeatFlags":
        match event:
            case SeatEvent.RISE:  # without an engine, or of one that was measured
                return SeatFlags(is_rising=True)
            case SeatEvent.BEGIN | SeatEvent.LACK_ROOM:
                return replace(self, is_rising=False)
            case SeatEvent.PROVEN:
                return replace(self, is_measuring=True)
            case SeatEvent.MEASURED:
                return replace(self, is_measuring=False)


@dataclass(frozen=True)
class TrialFlags:
    """What is so of a trial, one word each."""

    is_due: bool = False
    is_on: bool = False

    def possible(self) -> set[TrialEvent]:
        return {*TrialEvent}

    def after(self, event: TrialEvent) -> "TrialFlags":
        match event:
            case TrialEvent.FIND:
                return TrialFlags(is_due=True)
            case TrialEvent.LACK:
                return replace(self, is_due=False)
            case TrialEvent.SLEEP:
                return TrialFlags(is_on=self.is_due)
            case TrialEvent.WISH:
                return TrialFlags()


def _seat_agrees(state: SeatState, flags: SeatFlags) -> bool:
    """Whether the state says what the flags say."""
    said = {
        SeatState.SETTLED: not (flags.is_rising or flags.is_measuring),
        SeatState.RISING: flags.is_rising,
        SeatState.MEASURING: flags.is_measuring,
    }
    return says(said, state)


def _trial_agrees(state: SleepTrial, flags: TrialFlags) -> bool:
    """Whether the state says what the flags say."""
    said = {
        SleepTrial.NEEDLESS: not (flags.is_due or flags.is_on),
        SleepTrial.DUE: flags.is_due,
        SleepTrial.BEGUN: flags.is_on,
    }
    return says(said, state)


SEAT = Life(SEATS, SeatState.SETTLED, SeatFlags(), _seat_agrees)
TRIAL = Life(TRIALS, SleepTrial.NEEDLESS, TrialFlags(), _trial_agrees)


@pytest.mark.parametrize("life", [SEAT, TRIAL], ids=["seat", "trial"])
def test_every_walk_agrees_with_a_model_of_flags(life: Life) -> None:
    """All states and all entries of the table are reached, and no others."""
    life.check_walks()


@pytest.mark.parametrize("life", [SEAT, TRIAL], ids=["seat", "trial"])
def test_every_planted_fault_is_found(life: Life) -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    life.check_faults()


TestSeats = SEAT.machine(40)
TestTrials = TRIAL.machine(40)


def test_the_diagrams_of_the_documentation_are_the_tables() -> None:
    """`workers.supervisor.seat_states.diagrams` prints them anew."""
    assert {*diagrams()} <= {*documented_diagrams()}
