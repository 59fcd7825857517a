"""The measurement of the driver's checkpoint, with a stub of the driver and of nvidia-smi."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.stub_driver import COMPILER, driver_folder

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler makes the stub")

_PROGRAM = """#!/bin/sh
case "$1" in *name*) echo "stub, 580.1, 80000 MiB";; *) echo 4;; esac
"""


def _measured(folder: Path) -> "subprocess.CompletedProcess[str]":
    """The benchmark about a process that does nothing."""
    program = folder / "nvidia-smi"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "HERMA_TEST_CARD": str(folder)}
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    library = str(driver_folder() / "libcuda.so.1")
    command = ["--pid", str(engine.pid), "--times", "2", "--library", library]
    try:
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.engine.checkpoint", *command],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        engine.kill()
        engine.wait()


def test_each_switch_of_a_running_process_is_a_row(tmp_path: Path) -> None:
    done = _measured(tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert len(rows) == 2
    assert all(row.endswith("| not asked |") for row in rows)
    assert all(" | 4 | " in row for row in rows), "the card's memory while it sleeps"
    assert (tmp_path / "calls").read_text().count("Restore") == 2


def test_a_refusal_is_printed_and_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "fault-Lock").write_text("600")
    done = _measured(tmp_path)
    assert done.returncode == 1
    assert "it does not sleep: lock of process" in done.stdout
