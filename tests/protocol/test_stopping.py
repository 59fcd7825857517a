"""What SIGINT and SIGTERM do to a process that serves, up to its last instruction."""

import signal
import subprocess
import sys

BOUND_S = 30.0
SERVER = """
import sys, trio
from protocol.stopping import stopping

async def serve():
    stop = trio.Event()
    with stopping(stop.set, lambda number: print("hurry", number, flush=True)):
        print("up", flush=True)
        await stop.wait()
        print("draining", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)

trio.run(serve)
print("closing", flush=True)
sys.stdin.readline()
sys.exit(3)
"""


def test_the_first_stops_the_same_again_hurries_and_afterwards_none_does_anything() -> None:
    """The exit status is the process's own, and nothing is written of the signals."""
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
        assert process.stdout.readline() == f"hurry {int(signal.SIGINT)}\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == f"hurry {int(signal.SIGTERM)}\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closing\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(BOUND_S) == 3
        assert process.stderr.read() == ""
