"""The code that this process runs, and how it starts another process with the same code.

Owns the first words of such command lines. Several versions may be installed on a host, and the
working directory of a process may be a checkout of another version than it runs.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from housekeeping.errors import ConfigError

HELD: Final = "HERMA_HELD"
"""The environment variable by which a worker process starts held, for a trial. It is not a command
line option, so that a version that does not know it starts too, and serves at once.
"""
CODE_VARIABLES: Final = ("PYTHONPATH", "PYTHONHOME")
"""Environment variables that would make every version run the same code."""

_ROOT: Final = Path(__file__).resolve().parents[1]
_PROGRAM: Final = "herma"


def module_argv(module: str) -> list[str]:
    """The words that run a module of the code that this process runs."""
    # Without -P Python takes packages of the working directory before all others.
    is_here = Path.cwd() == _ROOT
    return [sys.executable, *([] if is_here else ["-P"]), "-m", module]


def own_entry(words: Sequence[str] | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command line of this process in two parts: the program, with links in its folder
    resolved, and the words after it. Raises `ConfigError` for a process that was not started as
    `herma`.
    """
    given = sys.orig_argv if words is None else words
    for at, word in enumerate(given):
        behind = tuple(given[at + 2 :])
        if word == "-m" and given[at + 1] == _PROGRAM:
            return (_followed(given[0]), *_flags(given[1:at]), "-m", _PROGRAM), behind
        if word == "-m" and given[at + 1] == "workers":
            return (_followed(given[0]), *_flags(given[1:at]), "-m", _PROGRAM), ("worker", *behind)
        if at and Path(word).name == _PROGRAM:
            return (str(Path(word).resolve()),), tuple(given[at + 1 :])
    raise ConfigError("this process was not started as `herma`, so it cannot be replaced")


def _flags(words: Sequence[str]) -> list[str]:
    """The interpreter's options in `words` that decide which code is found."""
    return [word for word in words if word in ("-P", "-I")]


def _followed(program: str) -> str:
    """`program` with its folder's links resolved. Its own link stays: an interpreter finds its
    virtual environment by it.
    """
    path = Path(program if "/" in program else sys.executable)
    return str(path.parent.resolve() / path.name)
