"""What the parent of several gateway processes reports to each process that it starts.

Owns the environment variable that carries the report. Must not know why a process ended.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

BACKLOG: Final = 1024
"""The bound on connections that wait to be accepted."""

_REPLACED: Final = "HERMA_REPLACED"


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """Since the start of the parent, `num_replaced` processes with this index have ended; `why` is
    how the last of them ended.
    """

    num_replaced: int = 0
    why: str = ""

    @property
    def environ(self) -> dict[str, str]:
        """The environment variable for the process."""
        return {_REPLACED: f"{self.num_replaced} {self.why}"} if self.num_replaced else {}

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> "ProcessStart":
        """Read the variable and remove it from `environ`, because it is not for child processes."""
        count, _, why = environ.pop(_REPLACED, "").partition(" ")
        return cls(int(count), why) if count.isdigit() else FIRST


FIRST: Final = ProcessStart()
"""The report to a process that replaces no other."""
