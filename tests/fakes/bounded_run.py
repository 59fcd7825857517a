"""A program that a test runs to its end, and that may start others: none outlives the bound.

`subprocess.run` kills one process at its timeout, and then waits for the others that hold the same
pipes, without a bound.
"""

import os
import signal
import subprocess
from collections.abc import Sequence


def run_bounded(command: Sequence[str], bound_s: float) -> "subprocess.CompletedProcess[str]":
    """Run it, with its output as text. Fails with that output if it takes longer than `bound_s`."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=bound_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            raise AssertionError(
                f"{command} still ran after {bound_s:.0f} s\n{stdout}\n{stderr}"
            ) from None
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
