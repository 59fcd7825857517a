"""Checks that need Triton to compile, where the tests' own process has it interpret."""

import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

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


def run_checks(namespace: dict[str, Any]) -> None:
    """In such a program: run the functions that the command line names, each in a fork of its own,
    so that they share the imports of torch and nothing that they cache.
    """
    for name in sys.argv[1:]:
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            status = 1
            try:
                namespace[name]()
                sys.stdout.flush()
                status = 0
            except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
                traceback.print_exc()
            os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{name} failed")
