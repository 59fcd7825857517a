"""When a process of several hangs, and its place on the port: made-up looks, and real sockets."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from herma.process_watch import LOOK_S, SILENT_S, Heartbeats, Sight, run_queue_s, watches
from herma.shared_port import SharedPort, listeners_of
from housekeeping.process_start import ProcessStart

HANG_S: Final = 5.0
ON_TIME: Final = st.floats(LOOK_S, 2 * LOOK_S)
LATE: Final = st.floats(2 * LOOK_S, 86_400, exclude_min=True)
SILENCE: Final = st.builds(
    lambda passed_s, share: Sight(0, passed_s, share * passed_s), ON_TIME, st.floats(0, 1)
)
BEAT: Final = st.builds(Sight, st.integers(1, 9), st.one_of(ON_TIME, LATE))
LATE_LOOK: Final = st.builds(Sight, st.just(0), LATE)

LISTEN: Final = """
import socket, sys
with socket.socket() as one:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", int(sys.argv[1])))
    one.listen(64)
    one.setblocking(False)
    print("up", flush=True)
    for _ in sys.stdin:
        held = []
        try:
            while True:
                held.append(one.accept())
        except OSError:
            pass
        print(len(held), flush=True)
"""


@given(st.lists(st.one_of(SILENCE, BEAT, LATE_LOOK), max_size=120))
def test_only_time_in_which_it_could_turn_counts(sights: list[Sight]) -> None:
    """From its first beat on, since its last one: what the parent slept through does not, and for a
    hang what the process waited for a processor does not either.
    """
    judge, silent_s, hung_s, has_begun = Heartbeats(HANG_S), 0.0, 0.0, False
    for sight in sights:
        has_begun |= sight.num_beats > 0
        if sight.num_beats:
            silent_s = hung_s = 0.0
        elif sight.passed_s <= 2 * LOOK_S:
            silent_s += sight.passed_s
            hung_s += sight.passed_s - sight.waited_s
        expected = "silent" if silent_s >= SILENT_S else "turns"
        expected = "hangs" if hung_s >= HANG_S else expected
        assert judge.look(sight) == (expected if has_begun else "starting")


@given(st.lists(st.lists(st.one_of(SILENCE, LATE_LOOK), max_size=7), max_size=40), BEAT)
def test_one_that_beats_is_never_taken_for_another(pauses: list[list[Sight]], beat: Sight) -> None:
    """Seven looks on time are less than three seconds; between them the machine may sleep for a
    day, or be so busy that the process gets nothing.
    """
    judge = Heartbeats(HANG_S)
    for pause in pauses:
        assert judge.look(beat) == "turns"
        assert {judge.look(sight) for sight in pause} <= {"turns"}


def test_one_that_got_no_processor_is_waited_for() -> None:
    """Off the port, from where it comes back; one that has had one for the whole time is ended."""
    for share, verdict in ((1.0, "silent"), (0.0, "hangs")):
        judge = Heartbeats(HANG_S)
        judge.look(Sight(1, LOOK_S))
        for _ in range(1 + round(HANG_S / LOOK_S)):
            judge.look(Sight(0, LOOK_S, share * LOOK_S))
        assert judge.verdict == verdict


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_one_that_is_stopped_for_five_looks_is_ended(looks: list[bool]) -> None:
    """A process that is stopped for five looks in a row is ended, also before its first beat; a
    late look between them begins anew, as after Ctrl-Z and `fg`.
    """
    judge, num = Heartbeats(HANG_S), 0
    for is_on_time in looks:
        num = num + 1 if is_on_time else 0
        verdict = judge.look(Sight(0, LOOK_S if is_on_time else 60.0, is_stopped=True))
        assert (verdict == "stopped") == (num >= 5)
        if verdict == "stopped":
            break


@contextmanager
def _listening(port: int) -> Iterator["subprocess.Popen[str]"]:
    words = [sys.executable, "-c", LISTEN, str(port)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def _accepted(process: "subprocess.Popen[str]") -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


@contextmanager
def _connected(port: int, count: int) -> Iterator[list[socket.socket]]:
    found = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    yield found
    for one in found:
        one.close()


def test_one_that_is_off_the_port_gets_no_connections_and_comes_back() -> None:
    """Connections that it had not accepted are reset, so that clients ask again and reach the other
    process.
    """
    with socket.socket() as claim:
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        claim.bind(("127.0.0.1", 0))
        port = claim.getsockname()[1]
        with _listening(port) as one, _listening(port) as two:
            shared = SharedPort(port)
            shared.admit(one.pid)
            shared.admit(two.pid)
            with _connected(port, 40) as waiting:
                shared.take_off(one.pid)
                num_kept = _accepted(two)
                assert 0 < num_kept < 40
                assert sum(map(_is_reset, waiting)) == 40 - num_kept
            with _connected(port, 40):
                assert _accepted(two) == 40
            shared.take_off(two.pid)
            with _connected(port, 20):
                assert _accepted(two) == 20, "the last one stays"
            shared.admit(one.pid)
            with _connected(port, 40):
                assert sorted((_accepted(one) > 0, _accepted(two) > 0)) == [True, True]
            shared.take_off(one.pid)
            shared.forget(one.pid)
            one.kill()
            one.wait()
            assert listeners_of(one.pid, port) == []


def _is_reset(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        connection.recv(1)
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return False


def test_the_kernel_says_how_long_a_process_waited() -> None:
    """The kernel says in seconds, which rise, how long a process waited; 0 for one that is gone."""
    assert 0 <= run_queue_s(os.getpid()) <= run_queue_s(os.getpid())
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert run_queue_s(process.pid) == 0.0


def test_a_process_is_told_of_the_one_before_it() -> None:
    """The environment of a process says where it sends heartbeats, and why the process before it at
    the same index ended.
    """
    with watches(2, HANG_S, 80) as (first, second):
        assert first.environ["NOTIFY_SOCKET"] != second.environ["NOTIFY_SOCKET"]
        assert first.environ["WATCHDOG_USEC"] == "2000000"
        assert ProcessStart.take(first.environ) == ProcessStart()
        assert first.ended("exit code 3") == "exit code 3"
        environ = first.environ
        assert ProcessStart.take(environ) == ProcessStart(1, "exit code 3")
        assert environ.keys() == second.environ.keys()
