"""Backoff between starts, and what an exit code means."""

import signal

import pytest

from workers.core.fault import fault_cause, last_log
from workers.core.restart import RestartPolicy, diagnose_exit, shell_code


def test_delays_double_to_thirty_seconds_for_an_engine_that_gets_ready() -> None:
    """0.1 s, doubling, at most 30 s; a crash after ready never ends the restarts."""
    policy = RestartPolicy()
    delays = []
    for start in range(12):
        policy.ready(now=100.0 * start)
        delays.append(policy.exited(now=100.0 * start + 1.0))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]


def test_a_minute_of_health_makes_the_backoff_new() -> None:
    """After 60 s ready the next death waits 0.1 s again."""
    policy = RestartPolicy()
    for _ in range(4):
        policy.ready(0.0)
        policy.exited(1.0)
    policy.ready(10.0)
    assert policy.exited(69.0) == pytest.approx(1.6)
    policy.ready(100.0)
    assert policy.exited(160.0) == pytest.approx(0.1)


def test_five_failed_starts_in_a_row_end_the_restarts() -> None:
    """A start that gets ready in between begins the count anew."""
    policy = RestartPolicy()
    for _ in range(4):
        assert policy.exited(0.0) is not None
    policy.ready(1.0)
    assert policy.exited(2.0) is not None
    assert [policy.exited(3.0) is None for _ in range(5)] == [False] * 4 + [True]
    assert policy.failed_starts == 5


@pytest.mark.parametrize(
    ("returncode", "code", "says"),
    [
        (127, 127, "file not found"),
        (126, 126, "not executable"),
        (1, 1, "its last log lines"),
        (0, 0, "without being asked"),
        (-signal.SIGKILL, 137, "SIGKILL"),
        (-signal.SIGSEGV, 139, "SIGSEGV"),
        (-signal.SIGILL, 132, "instruction"),
        (-signal.SIGHUP, 129, "SIGHUP"),
        (77, 77, "exit code 77"),
        (255, 255, "exit code 255"),
    ],
)
def test_exit_codes_are_named(returncode: int, code: int, says: str) -> None:
    """Every code has a line with its number; the common ones say what happened."""
    assert shell_code(returncode) == code
    assert says in diagnose_exit(code)
    assert str(code) in diagnose_exit(code)


def test_the_most_telling_cause_is_told() -> None:
    """Our own verdict, else the engine's words, else the exit code; giving up is added."""
    assert fault_cause(killed_for="hung", told="x", exit_code=137, gives_up=False) == "hung"
    assert fault_cause(killed_for=None, told="no shard", exit_code=1, gives_up=False) == "no shard"
    cause = fault_cause(killed_for=None, told=None, exit_code=127, gives_up=True)
    assert "file not found" in cause
    assert "stopped after 5 starts" in cause


def test_log_lines_are_cut() -> None:
    """A fault carries at most 50 lines of 500 characters."""
    lines = last_log(f"{i} " + "x" * 1000 for i in range(80))
    assert len(lines) == 50
    assert {len(line) for line in lines} == {500}
    assert lines[-1].startswith("79 ")
