"""A log that stands still delays nothing. A program of its own, because a mistake here waits for
ever.
"""

import os
import subprocess
import sys
import threading
import tty
from collections.abc import Callable

import pytest

BOUND_S = 300
PROGRAM = """
import os, sys
from housekeeping.service_manager import say
if sys.argv[1:]:
    def refused(*_given, **_named):
        raise PermissionError
    os.open = refused
def told():
    os.write(1, b".")
    sys.stdin.readline()
for number in range(5000):
    say(f"line {number} " + 80 * "x")
say("y" * 20_000)
told()
say("here again")
told()
"""

Ends = tuple[int, int]


def _terminal() -> Ends:
    reader, writer = os.openpty()
    tty.setraw(writer)  # else each line break becomes two characters
    return reader, writer


def _read_all(reader: int) -> bytes:
    """What is there now."""
    os.set_blocking(reader, False)
    found = b""
    try:
        while data := os.read(reader, 65_536):
            found += data
    except OSError:  # nothing more, or the end of a terminal
        return found
    return found


@pytest.mark.parametrize(
    ("ends", "options"), [(os.pipe, []), (os.pipe, ["refused"]), (_terminal, [])]
)
def test_a_reader_that_stands_still_delays_nothing(
    ends: Callable[[], Ends], options: list[str]
) -> None:
    """The lines that found no room are counted by the first one that does, whether or not a pipe
    can be opened anew, as it cannot after a change of the user.
    """
    reader, writer = ends()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=writer,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(BOUND_S, process.kill)
        watch.start()
        try:
            assert process.stdout.read(1) == b"."
            before = _read_all(reader)
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.read(1) == b"."
            after = _read_all(reader)
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.wait(BOUND_S) == 0
        finally:
            watch.cancel()
            process.kill()
            os.close(reader)
            os.close(writer)
    whole = before.split(b"\n")[:-1]
    assert whole[0].startswith(b"line 0 ")
    *lost, last = after.removeprefix(b"\n").splitlines()
    assert last == b"here again"
    (count,) = lost
    assert count == b"(%d lines of the log were lost: it took none)" % (5001 - len(whole))


@pytest.mark.parametrize("target", ["/dev/full", "closed", "no reader"])
def test_a_log_that_takes_nothing_ends_nothing(target: str) -> None:
    """A full disk; a stream that is closed; a reader that is gone."""
    program = "from housekeeping.service_manager import say\nsay('x')\nsay('y')\nprint('done')"
    if target == "closed":
        program = f"import os\nos.close(2)\n{program}"
    if target == "no reader":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open("/dev/full" if target == "/dev/full" else os.devnull, os.O_WRONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE, stderr=writer, timeout=BOUND_S, check=True,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert done.stdout == b"done\n"
