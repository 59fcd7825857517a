"""What the parent of several gateway processes on one port tells each that it starts.

Owns the environment variable that carries it. Must not know why a process ended.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

BACKLOG: Final = 1024
"""Connections that wait to be accepted, at most."""

_REPLACED: Final = "HERMA_REPLACED"


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """`num_replaced` processes had this index before, since the start of the parent; `why` says how
    the last of them ended.
    """

    num_replaced: int = 0
    why: str = ""

    @property
    def environ(self) -> dict[str, str]:
        """The variable for the process."""
        return {_REPLACED: f"{self.num_replaced} {self.why}"} if self.num_replaced else {}

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> "ProcessStart":
        """What `environ` says, which is removed from it: children of the process are others."""
        count, _, why = environ.pop(_REPLACED, "").partition(" ")
        return cls(int(count), why) if count.isdigit() else FIRST


FIRST: Final = ProcessStart()
"""Of a process that replaces no other."""
