"""The tables of a seat and of its trial, walked beside models that keep flags."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.life_tables import ImpossibleEventError
from tests.fakes.life_tables import disagreement, documented_diagrams, faults
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
    return [one for one, is_so in said.items() if is_so] == [state]


def _trial_agrees(state: SleepTrial, flags: TrialFlags) -> bool:
    """Whether the state says what the flags say."""
    said = {
        SleepTrial.NEEDLESS: not (flags.is_due or flags.is_on),
        SleepTrial.DUE: flags.is_due,
        SleepTrial.BEGUN: flags.is_on,
    }
    return [one for one, is_so in said.items() if is_so] == [state]


SEAT = (SeatState.SETTLED, SeatFlags())
TRIAL = (SleepTrial.NEEDLESS, TrialFlags())


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of both tables are reached, and no others."""
    assert disagreement(SEATS, SeatEvent, SEAT, _seat_agrees) is None
    assert disagreement(TRIALS, TrialEvent, TRIAL, _trial_agrees) is None


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    for name, seats in faults(SEATS, SeatState, SeatEvent):
        assert disagreement(seats, SeatEvent, SEAT, _seat_agrees), name
    for name, trials in faults(TRIALS, SleepTrial, TrialEvent):
        assert disagreement(trials, TrialEvent, TRIAL, _trial_agrees), name


class SeatMachine(RuleBasedStateMachine):
    """Long lives of both, side by side."""

    def __init__(self) -> None:
        super().__init__()
        (self.seat, self.seat_flags), (self.trial, self.trial_flags) = SEAT, TRIAL

    @rule(event=st.sampled_from(SeatEvent))
    def sits(self, event: SeatEvent) -> None:
        if event not in self.seat_flags.possible():
            with pytest.raises(ImpossibleEventError, match=f"^{event.name} in {self.seat.name}$"):
                SEATS[self.seat, event]
            return
        self.seat, self.seat_flags = SEATS[self.seat, event], self.seat_flags.after(event)

    @rule(event=st.sampled_from(TrialEvent))
    def tries(self, event: TrialEvent) -> None:
        self.trial, self.trial_flags = TRIALS[self.trial, event], self.trial_flags.after(event)

    @invariant()
    def agrees(self) -> None:
        assert _seat_agrees(self.seat, self.seat_flags)
        assert _trial_agrees(self.trial, self.trial_flags)


TestSeats = SeatMachine.TestCase
TestSeats.settings = settings(
    max_examples=max(60, settings().max_examples // 10), stateful_step_count=40, deadline=None
)


def test_the_diagrams_of_the_documentation_are_the_tables() -> None:
    """`workers.supervisor.seat_states.diagrams` prints them anew."""
    assert {*diagrams()} <= {*documented_diagrams()}
