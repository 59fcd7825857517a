"""Names of what a process leaves lying about, so that others know when nobody owns it any more.

Owns the form `herma-NAMESPACE-PID-START-WHAT` and the decision what may go. Must not know files.

A process id alone would be dangerous twice: the kernel gives numbers again, so the name holds the
process's start time in clock ticks; and two containers that share a directory have processes of
the same number, so it holds the id of the pid namespace. Names of another namespace are let alone.
"""

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"herma-(\d{1,20})-(\d{1,10})-(\d{1,20})-[\w.-]+", re.ASCII)
_FLAGS_FIELD: Final = 6
_START_FIELD: Final = 19
"""Fields 9 and 22 of /proc/PID/stat, counted from the state behind the name in parentheses."""

_PF_EXITING: Final = 0x4


@dataclass(frozen=True, slots=True)
class Owner:
    """One process of all times: `namespace` is the inode of its pid namespace, `start_ticks` when
    it began after boot.
    """

    namespace: int
    pid: int
    start_ticks: int

    def name(self, what: str) -> str:
        """The name of something that belongs to this process."""
        return f"herma-{self.namespace}-{self.pid}-{self.start_ticks}-{what}"


def owner_of(name: str) -> Owner | None:
    """Who owns the thing of that name; None if it is none of ours."""
    match = _NAME.fullmatch(name)
    return None if match is None else Owner(*map(int, match.groups()))


def left_behind(names: Iterable[str], namespace: int, living: Set[Owner]) -> list[str]:
    """Those of `names` whose owner lived in `namespace` and lives no more."""
    found: list[str] = []
    for name in names:
        owner = owner_of(name)
        if owner is not None and owner.namespace == namespace and owner not in living:
            found.append(name)
    return found


def start_ticks(stat: str) -> int | None:
    """The start time in /proc/PID/stat; None for a zombie, which owns nothing any more."""
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _START_FIELD or fields[0] in ("Z", "X"):
        return None
    return int(fields[_START_FIELD])


def is_exiting(stat: str) -> bool:
    """Whether the process of this /proc/PID/stat is being taken apart by the kernel."""
    fields = stat.rpartition(")")[2].split()
    return len(fields) > _FLAGS_FIELD and bool(int(fields[_FLAGS_FIELD]) & _PF_EXITING)
