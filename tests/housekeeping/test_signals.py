"""Signals that end processes, and children that end with their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from housekeeping.signals import die_with_parent

linux = pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")

BOUND_S = 30.0
CHILD = """
import os, sys, time
from housekeeping.signals import die_with_parent
die_with_parent(int(sys.argv[1]), int(sys.argv[2]))
print("alive", flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]])
print(child.pid, flush=True)
time.sleep(600)
"""


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_parent_takes_its_child_along(number: signal.Signals) -> None:
    """By the signal that was asked for."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(int(number))], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as lines:
        pid = int(next(lines))
        assert next(lines) == "alive\n"
        parent.kill()
        parent.wait()
        assert lines.read() == ""  # the end of file: the child that shared the pipe is gone
    wait_gone(pid)


@linux
def test_a_parent_that_died_before_the_call_is_noticed() -> None:
    """The race of prctl(2): without the parent's number the child would live for ever."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(os.getpid() + 1), str(int(signal.SIGTERM))],
        capture_output=True,
        check=False,
        timeout=BOUND_S,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")


@linux
def test_a_signal_that_is_none_is_refused() -> None:
    """The kernel says no, and so do we."""
    with pytest.raises(OSError, match="prctl"):
        die_with_parent(os.getppid(), 4096)


def wait_gone(pid: int) -> None:
    """Return once no process has the number."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return  # where no process reaps orphans
        time.sleep(0.01)
    raise AssertionError(f"{pid} lives on")


SERVER = """
import sys, trio
from housekeeping.signals import graceful_stop

async def serve():
    stop = trio.Event()
    with graceful_stop(stop.set, lambda number: print("force", number, flush=True)):
        print("up", flush=True)
        await stop.wait()
        print("draining", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)

trio.run(serve)
print("closing", flush=True)
sys.stdin.readline()
sys.exit(3)
"""


def test_the_first_signal_stops_and_the_same_again_forces() -> None:
    """Afterwards signals do nothing: the exit status is the process's own."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == f"force {int(signal.SIGINT)}\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == f"force {int(signal.SIGTERM)}\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closing\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(BOUND_S) == 3
        assert process.stderr.read() == ""


RELOADER = """
import signal, trio
from housekeeping.signals import hangups

# The tests may themselves run where it is ignored, which children inherit.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

async def serve():
    print("up", flush=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.sleep_forever()

async def count():
    async for _ in hangups():
        print("read", flush=True)

trio.run(serve)
"""


def test_a_hangup_asks_to_read_again_unless_a_terminal_sends_it() -> None:
    """With a terminal as its input the process ends by it, as it does by default."""
    with subprocess.Popen(
        [sys.executable, "-c", RELOADER],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        wait_caught(process.pid, signal.SIGHUP)
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "read\n"
        process.kill()
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", RELOADER], stdin=theirs, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGHUP)
        assert process.wait() == -signal.SIGHUP
    os.close(ours)
    os.close(theirs)


def wait_caught(pid: int, number: int) -> None:
    """Return once the process has a handler for the signal."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        (line,) = [
            line
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("SigCgt:")
        ]
        if int(line.split()[1], 16) >> (number - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} has no handler for signal {number}")
