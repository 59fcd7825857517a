"""Backoff between starts, and when the tries end."""

import pytest

from workers.supervisor.restart_policy import RestartPolicy


def test_delays_double_to_thirty_seconds_for_an_engine_that_gets_ready() -> None:
    """0.1 s, doubling, at most 30 s; a crash after ready never ends the restarts."""
    policy = RestartPolicy()
    delays = []
    for start in range(12):
        policy.ready(now=100.0 * start)
        delays.append(policy.exited(now=100.0 * start + 1.0, is_permanent=True))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]


def test_a_minute_of_health_makes_the_backoff_new() -> None:
    """After 60 s ready the next death waits the first delay again."""
    policy = RestartPolicy(first_delay_s=0.5)
    for _ in range(4):
        policy.ready(0.0)
        policy.exited(1.0)
    policy.ready(10.0)
    assert policy.exited(69.0) == pytest.approx(8.0)
    policy.ready(100.0)
    assert policy.exited(160.0) == pytest.approx(0.5)


def test_five_failed_starts_in_a_row_end_the_restarts() -> None:
    """A start that gets ready in between begins the count anew."""
    policy = RestartPolicy()
    for _ in range(4):
        assert policy.exited(0.0) is not None
    policy.ready(1.0)
    assert policy.exited(2.0) is not None
    assert [policy.exited(3.0) is None for _ in range(5)] == [False] * 4 + [True]
    assert policy.failed_starts == 5


def test_a_cause_outside_gets_time_to_pass() -> None:
    """A driver that a boot still loads. An engine that was ready restarts as ever."""
    policy = RestartPolicy()
    delays = [policy.exited(0.0, is_outside=True) for _ in range(5)]
    assert delays == [10.0, 20.0, 30.0, 30.0, None]
    policy.reset()
    policy.ready(0.0)
    assert policy.exited(1.0, is_outside=True) == pytest.approx(0.1)


def test_an_attached_engine_that_served_is_tried_for_ever() -> None:
    """A proxy in front of it may say 404 for minutes while it restarts. One that never served is
    given up as any: its address or its name is wrong. So it is after a restart by hand.
    """
    policy = RestartPolicy()
    assert [policy.exited(0.0, is_attached=True) is None for _ in range(5)][-1]
    policy.reset()
    policy.ready(0.0)
    assert policy.is_endless(is_attached=True)
    assert not policy.is_endless(is_attached=False)
    delays = [policy.exited(1.0, is_attached=True, is_permanent=True) for _ in range(12)]
    assert delays[-2:] == [30.0, 30.0]
    policy.reset()
    assert policy.exited(2.0, is_attached=True, is_permanent=True) is None


def test_a_permanent_cause_ends_the_first_failed_start() -> None:
    """A permanent cause ends the tries at the first failed start, and a reset, once it is
    corrected, gives all tries back.
    """
    policy = RestartPolicy()
    assert policy.exited(0.0, is_permanent=True) is None
    assert policy.failed_starts == 1
    policy.reset()
    assert [policy.exited(1.0) for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, None]
