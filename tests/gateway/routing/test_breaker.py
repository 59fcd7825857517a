"""Breakers, and the order that they give."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.breaker import (
    FAILURES,
    FIRST_OPEN_S,
    LONGEST_OPEN_S,
    TRIAL_S,
    Breaker,
    in_order,
)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        news = breaker.failed(now)
    assert news
    return breaker


def test_it_opens_after_failures_in_a_row() -> None:
    """A success in between begins anew; opening is told once."""
    breaker = Breaker()
    told = [breaker.failed(0.0) for _ in range(FAILURES - 1)]
    assert not breaker.succeeded()
    told += [breaker.failed(0.0) for _ in range(FAILURES + 2)]
    assert told == [False] * (2 * FAILURES - 2) + [True, False, False]
    assert breaker.is_open


def test_one_request_tries_it_when_its_time_is_over() -> None:
    """One request tries the target when its time is over; others are not sent there until that
    trial has ended or was forgotten.
    """
    breaker = opened()
    assert not breaker.is_good(FIRST_OPEN_S - 0.1)
    assert breaker.is_good(FIRST_OPEN_S)
    breaker.asked(FIRST_OPEN_S)
    assert not breaker.is_good(FIRST_OPEN_S)
    assert breaker.is_good(FIRST_OPEN_S + TRIAL_S)
    assert breaker.succeeded()
    assert breaker.is_good(FIRST_OPEN_S)


def test_a_trial_that_is_sent_away_leaves_its_turn_to_the_next() -> None:
    """A busy answer is no end of a trial: it told nothing, and nobody need wait for it."""
    breaker = opened()
    breaker.asked(FIRST_OPEN_S)
    breaker.refused()
    breaker.cool(FIRST_OPEN_S, 1.0)
    assert not breaker.is_good(FIRST_OPEN_S + 0.9)
    assert breaker.is_good(FIRST_OPEN_S + 1.0)
    assert breaker.is_open


def test_failed_trials_wait_longer_up_to_a_bound() -> None:
    """Twice as long each time; late failures of old requests change nothing."""
    breaker, now, waits = opened(), 0.0, []
    for _ in range(6):
        assert not breaker.failed(now)
        now += breaker.open_s
        assert breaker.is_good(now)
        breaker.asked(now)
        breaker.failed(now)
        waits.append(breaker.open_s)
    assert waits == [10.0, 20.0, 40.0, LONGEST_OPEN_S, LONGEST_OPEN_S, LONGEST_OPEN_S]


def test_an_open_target_is_asked_last_not_never() -> None:
    """Open targets are asked last, of several only the one that is due soonest: a request is not
    sent to all of them.
    """
    breakers = {"a": opened(0.0), "b": Breaker(), "c": opened(1.0)}
    assert in_order("abc", breakers.__getitem__, 2.0) == (["b", "a"], None)
    breakers["b"] = opened(2.0)
    assert in_order("abc", breakers.__getitem__, 2.0) == (["a"], None)
    assert in_order("abc", breakers.__getitem__, 20.0) == (["a", "b", "c"], None)


def test_a_target_that_asked_for_a_pause_gets_it() -> None:
    """A target that asked for a pause is not asked until it is over; if all targets did, the client
    is told the shortest pause. A pause is no failure.
    """
    breakers = {"a": Breaker(), "b": Breaker()}
    assert breakers["a"].cool(0.0, 30.0)
    assert not breakers["a"].cool(1.0, 60.0)
    assert in_order("ab", breakers.__getitem__, 2.0) == (["b"], None)
    breakers["b"].cool(2.0, 7.0)
    assert in_order("ab", breakers.__getitem__, 4.0) == ([], 5.0)
    assert in_order("ab", breakers.__getitem__, 61.0) == (["a", "b"], None)
    assert not breakers["a"].is_open


@given(st.lists(st.tuples(st.sampled_from("fsac"), st.floats(0, 30)), max_size=60))
def test_somebody_is_always_asked_unless_all_want_a_pause(steps: list[tuple[str, float]]) -> None:
    """Some target is always asked unless all want a pause, and every breaker closes again after a
    while.
    """
    breakers, now = {"x": Breaker(), "y": Breaker()}, 0.0
    for number, (step, seconds) in enumerate(steps):
        breaker = breakers["xy"[number % 2]]
        now += seconds
        match step:
            case "f":
                breaker.failed(now)
            case "s":
                breaker.succeeded()
            case "a":
                breaker.asked(now)
            case _:
                breaker.cool(now, seconds)
        order, pause_s = in_order("xy", breakers.__getitem__, now)
        assert bool(order) == (pause_s is None)
        assert len(set(order)) == len(order)
        later = now + max(LONGEST_OPEN_S, TRIAL_S)
        assert all(breaker.is_good(later) for breaker in breakers.values())
