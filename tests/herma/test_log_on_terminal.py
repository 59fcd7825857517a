"""The log of a command on a terminal, where a person reads it."""

import os
import signal
import subprocess
import sys
import threading

BOUND_S = 240


def test_on_a_terminal_events_are_sentences() -> None:
    """No JSON between the lines; a pipe gets it, as programs read it."""
    reader, writer = os.openpty()
    argv = [sys.executable, "-m", "herma", "gateway", "--port", "0"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HERMA_LOG")}
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=writer, env=kept) as process:
        os.close(writer)
        bound = threading.Timer(BOUND_S, process.kill)
        bound.start()
        shown = b""
        try:
            while part := os.read(reader, 65_536):
                shown += part
                if b"serving http://" in part:
                    process.send_signal(signal.SIGTERM)
        except OSError:  # the end of a terminal that nobody writes to any more
            os.close(reader)
        bound.cancel()
    lines = shown.decode().splitlines()
    assert any(line.endswith("INFO drain by SIGTERM or SIGINT: begun") for line in lines), lines
    assert not any(line.startswith("{") for line in lines)
