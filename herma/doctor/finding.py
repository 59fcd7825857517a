"""A finding: what a check has found, why it matters and how to mend it.

Owns the three levels and their order. Must not know how a fact was read.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

Level = Literal["error", "warning", "note"]

LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "note")
"""`error`: a worker or the next boot fails. `warning`: it costs speed, memory or safety. `note`: a
fact that explains other findings.
"""


class Fix(msgspec.Struct, frozen=True):
    """A repair that loses nothing: a kernel file that is written, or files that are removed."""

    write: tuple[Path, str] | None = None
    remove: tuple[Path, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """One line each: `what` was found, `why` it matters, and the `remedy`, a command or a change.
    `check` is the name of the check, `fix` the repair of `--fix`.
    """

    level: Level
    check: str
    what: str
    why: str
    remedy: str
    fix: Fix | None = None


def worst(findings: Iterable[Finding]) -> Level | None:
    """The highest level among `findings`; None without any."""
    return min((one.level for one in findings), key=LEVELS.index, default=None)
