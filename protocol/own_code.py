"""The code that this process runs, and how it starts another process with the same.

Owns the first words of such command lines. Several versions may be installed on a host, and a
process may stand in a checkout of one while it runs another.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError

HELD: Final = "HERMA_HELD"
"""A variable of the environment of a worker's process that is on trial. No option: a version that
does not know it serves at once.
"""
CODE_VARIABLES: Final = ("PYTHONPATH", "PYTHONHOME")
"""They would have every version run the same code."""

_ROOT: Final = Path(__file__).resolve().parents[1]
_PROGRAM: Final = "herma"


def module_argv(module: str) -> list[str]:
    """The words that run one of our modules, from where this process has its own."""
    # Without -P Python takes packages of the working directory before all others.
    is_here = Path.cwd() == _ROOT
    return [sys.executable, *([] if is_here else ["-P"]), "-m", module]


def own_entry(words: Sequence[str] | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The program of this process as the first words of a command line, with links to its folder
    followed, and the words behind it. Raises `ConfigError` for a process that was started otherwise
    than as `herma`.
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
    """Of the interpreter's own, those that decide which code is found."""
    return [word for word in words if word in ("-P", "-I")]


def _followed(program: str) -> str:
    """An interpreter's own link is what makes its environment, so only its folder is followed."""
    path = Path(program if "/" in program else sys.executable)
    return str(path.parent.resolve() / path.name)
