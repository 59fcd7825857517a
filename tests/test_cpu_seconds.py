"""The CPU seconds of a run are charged to the tests that used them, their processes' included."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import subprocess, sys, time

WORK = "import time\\nwhile time.process_time() < 0.5: pass"

def test_itself():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass

def test_by_a_process():
    subprocess.run([sys.executable, "-c", WORK], check=True)

def test_that_waits():
    time.sleep(0.5)
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_each_second_is_its_tests(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-q", "-n", processes, "-p", "tests.cpu_seconds"]
    done = subprocess.run(
        [*argv, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^ *([\d.]+) \S*::(\w+)$", done.stdout, re.MULTILINE)
    used = {name: float(seconds) for seconds, name in found}
    assert used["test_itself"] >= 0.5
    assert used["test_by_a_process"] >= 0.5
    assert used["test_that_waits"] < used["test_itself"]
