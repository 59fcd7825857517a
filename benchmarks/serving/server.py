"""`make up` as a process, from its start to `ready`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

ROOT = Path(__file__).parents[2]
STOP_S = 30


@contextmanager
def running_herma() -> Iterator[tuple[str, float]]:
    """Yield the base URL and the seconds from `make up` to its `ready` line.

    It uses the environment of this benchmark, so nothing is installed. Raises `RuntimeError` if it
    ends before it is ready.
    """
    with NamedTemporaryFile() as stamp:  # newer than pyproject.toml, so make takes it as installed
        argv = ["make", "--no-print-directory", "up", f"VENV_DIR={sys.prefix}"]
        argv += [f"STAMP={stamp.name}", "ARGS=--port 0"]
        started_at = time.perf_counter()
        process = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield _ready_url(process), time.perf_counter() - started_at
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(STOP_S)


def _ready_url(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            return line.split()[1]
    raise RuntimeError(f"`make up` ended with {process.wait()} before it was ready")
