"""Checks that need Triton to compile, where the tests' own process has it interpret.

Each program runs in a fork of one process that has imported torch and Triton, and nothing of ours:
the import takes longer than most checks.
"""

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_uninterpreted(module: str, *arguments: str, cache: Path | None = None) -> str:
    """What the program `module` prints, with a kernel cache of its own; fails with its errors."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if cache is not None:
        environment["TRITON_CACHE_DIR"] = str(cache)
    forks = _forks()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"{folder}/{name}" for name in ("stdout", "stderr")]
        asked = {"argv": [module, *arguments], "environment": environment, "outputs": outputs}
        assert forks.stdin is not None
        assert forks.stdout is not None
        forks.stdin.write(json.dumps(asked) + "\n")
        forks.stdin.flush()
        status = forks.stdout.readline()
        stdout, stderr = (Path(path).read_text() for path in outputs)
    assert status == "0\n", f"{module} ended with {status!r}\n{stderr}"
    return stdout


@cache
def _forks() -> "subprocess.Popen[str]":
    """The process that forks; it ends with its input."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    forks = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.uninterpreted"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=ROOT,
        text=True,
    )
    atexit.register(forks.communicate)
    return forks


def _fork_for_each() -> None:
    """For each line of the input a fork that runs a program; its status is a line of the output."""
    import torch  # noqa: F401 - for the forks
    import triton.compiler  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        if (child := os.fork()) == 0:
            os._exit(_run(asked["argv"], asked["environment"], asked["outputs"]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(argv: list[str], environment: dict[str, str], outputs: list[str]) -> int:
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = list(argv)
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


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


if __name__ == "__main__":
    _fork_for_each()
