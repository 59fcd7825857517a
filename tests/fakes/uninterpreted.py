"""Checks that need Triton to compile, where the tests' own process has it interpret."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_uninterpreted(module: str, *arguments: str, cache: Path | None = None) -> str:
    """What the program `module` prints, with a kernel cache of its own; fails with its errors."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if cache is not None:
        environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
