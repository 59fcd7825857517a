"""The metronome: exact while steps follow each other, and free of drift."""

from hypothesis import given
from hypothesis import strategies as st

from workers.replay.pace import Pace

STEP_S = 0.02


@given(st.lists(st.floats(0.0, 0.9 * STEP_S), min_size=1, max_size=200))
def test_late_sleeps_do_not_add_up(lateness_s: list[float]) -> None:
    """However late each sleep returns, the n-th step ends n steps after the start."""
    pace = Pace(STEP_S)
    now = 1000.0
    for number, late_s in enumerate(lateness_s, start=1):
        due_at = pace.next_due(now)
        assert abs(due_at - (1000.0 + number * STEP_S)) < 1e-6
        now = due_at + late_s


def test_a_pause_begins_anew() -> None:
    """The first step after it is a whole one, and nothing is caught up."""
    pace = Pace(STEP_S)
    assert pace.next_due(5.0) == 5.0 + STEP_S
    assert pace.next_due(9.0) == 9.0 + STEP_S


def test_without_a_step_time_nothing_waits() -> None:
    """As fast as the machine goes."""
    pace = Pace(0.0)
    assert [pace.next_due(now) for now in (1.0, 1.0, 2.5)] == [1.0, 1.0, 2.5]
