"""What a process under measurement is charged for."""

import sys
from pathlib import Path

from benchmarks.gateway.processes import Process

WORK = "sum(number * number for number in range(3_000_000)); print('done', flush=True); input()"
WITHOUT_WORK = "print('done', flush=True); input()"
PARENT = """
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE) as child:
    child.wait()
"""


def _cpu_s(folder: Path, work: str) -> float:
    """The CPU seconds of a process that leaves `work` to a child of its own, which lives when it is
    asked.
    """
    process = Process([sys.executable, "-c", PARENT, work], folder / "log")
    try:
        process.wait_for(lambda: process.find("(done)") is not None)
        return process.cpu_s()
    finally:
        process.stop()


def test_work_that_a_gateway_leaves_to_its_children_counts(tmp_path: Path) -> None:
    """Without the children's time a gateway that has child processes would seem to cost nothing."""
    assert _cpu_s(tmp_path, WORK) > 2 * _cpu_s(tmp_path, WITHOUT_WORK)


def test_what_a_measured_process_keeps_goes_with_its_folder(tmp_path: Path) -> None:
    """If the records stayed, `herma doctor` would compare the user's workers with a worker of a
    measurement for ever.
    """
    code = "import os, time; print(os.environ['XDG_STATE_HOME'], flush=True); time.sleep(600)"
    process = Process([sys.executable, "-c", code], tmp_path / "log")
    try:
        process.wait_for(lambda: process.find("(.+)") is not None)
        assert process.find("(.+)") == str(tmp_path)
    finally:
        process.stop()
