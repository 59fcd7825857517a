"""Makes a command of Herma run as the current version of this host.

Owns the hand-over at the start of a process. A program on the PATH, an old unit's command and a
child of an older `herma up` become the current version's program; after a rollback they become the
earlier version's. Must not know what a command does.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from housekeeping.own_code import CODE_VARIABLES, HELD
from protocol.errors import ConfigError
from workers.versions import HERMA, installation_of

STAY: Final = ("upgrade", "rollback")
"""Commands that run as the version that was called: the way back must not depend on the version
that it leaves.
"""
_PARENT: Final = "--parent"


def become_current(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace this program by the current version's, with the same words, if this process is of
    another version of this host. Returns if it is not, or if that program is missing.
    """
    program = current_program(words, environ, Path(sys.prefix))
    if program is None:
        return
    if not os.access(program, os.X_OK):
        print(f"herma: the current version's program {program} is gone", file=sys.stderr)
        return
    changed = {name: value for name, value in environ.items() if name not in CODE_VARIABLES}
    os.execve(program, [str(program), *words], changed)  # noqa: S606


def current_program(words: Sequence[str], environ: Mapping[str, str], prefix: Path) -> Path | None:
    """The program to become; None to stay. `prefix` is the environment of this process."""
    if HELD in environ or command_of(words) in STAY:
        return None
    # Without a home, or a readable state directory, there are no versions; the command itself
    # reports what it lacks.
    with suppress(ConfigError, OSError):
        return installation_of(HERMA, environ).program_instead_of(prefix)
    return None


def command_of(words: Sequence[str]) -> str:
    """The command in a command line; "" if there is none."""
    rest = words[2:] if words[:1] == [_PARENT] else words
    return next((word for word in rest if not word.startswith("-")), "")
