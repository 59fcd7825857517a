"""A run names its failures as they happen, ends by a signal, and leaves no process behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fakes.herma_process import wait_until
from tests.run_watch import KEEP_ENVIRONMENT, MARK

ROOT = Path(__file__).parents[1]
END_S = 120.0
"""For what would otherwise never end."""
TESTS = '''
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent

def test_fails():
    assert 1 == 2, "a reason"

SLEEPER = """
import os
import sys
import time
from pathlib import Path
from setproctitle import setproctitle

setproctitle("herma a long title")
part = Path(sys.argv[1])
part.write_text(str(os.getpid()))
part.rename(part.with_name("sleeper"))
time.sleep(1000)
"""

def sleeper():
    command = [sys.executable, "-c", SLEEPER, str(FOLDER / "part")]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (FOLDER / "sleeper").exists():
        time.sleep(0.05)

def test_waits():
    sleeper()
    time.sleep(1000)

def test_leaves():
    sleeper()
'''


@contextmanager
def _run(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A run of `TESTS` in a session of its own."""
    (folder / "test_odd.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.run_watch"]
    options = ["--rootdir", str(folder), "-c", os.devnull, "-o", "addopts=", *words]
    ours = MARK, KEEP_ENVIRONMENT
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    with subprocess.Popen(
        [*command, *options, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        cwd=ROOT, env=environment, text=True, start_new_session=True,
    ) as run:  # fmt: skip
        try:
            yield run
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


@pytest.mark.parametrize("is_for_all", [False, True], ids=["to one", "to its group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_a_run_and_all_its_processes(
    number: signal.Signals, is_for_all: bool, tmp_path: Path
) -> None:
    """A signal ends a run and all its processes while one test waits for ever; the failed one has
    been named before.
    """
    with _run(tmp_path, "-n", "2", "-k", "test_fails or test_waits") as run:
        assert run.stdout is not None
        seen = []
        for line in run.stdout:
            seen.append(line)
            if line.startswith("FAILED"):
                break
        assert "test_odd.py::test_fails (call)" in seen[-1], seen
        assert "a reason" in seen[-1]
        wait_until((tmp_path / "sleeper").exists, "the process of the test that waits")
        sleeper = int((tmp_path / "sleeper").read_text())
        (os.killpg if is_for_all else os.kill)(run.pid, number)
        out, _ = run.communicate(timeout=END_S)
        assert run.returncode == pytest.ExitCode.INTERRUPTED, out
        assert not _runs(sleeper), out
        assert is_for_all or f"left behind, killed: {sleeper} herma a long title" in out


def test_what_a_run_leaves_behind_is_told(tmp_path: Path) -> None:
    """Processes that a run leaves behind are reported, also where all its tests pass."""
    with _run(tmp_path, "-k", "test_leaves") as run:
        out, _ = run.communicate(timeout=END_S)
    assert run.returncode == 0, out
    sleeper = int((tmp_path / "sleeper").read_text())
    assert f"left behind, killed: {sleeper} herma a long title" in out
    assert not _runs(sleeper)


def _runs(pid: int) -> bool:
    """Whether there is such a process; one that has ended and that nobody has asked for is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
