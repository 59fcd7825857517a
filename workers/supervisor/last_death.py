"""The last death of a worker's engine, for status requests.

Owns what is kept of the death. Must not know how a death is diagnosed (`diagnosis.py`).
"""

from dataclasses import dataclass

from protocol.control_messages import MAX_SHOWN_LINES, LastFault
from protocol.messages import FaultKind


@dataclass(frozen=True, slots=True)
class Death:
    """The death of the engine of `epoch`, at a time in seconds."""

    epoch: int
    at: float
    cause: str
    kind: FaultKind
    exit_code: int | None
    lines: tuple[str, ...]

    def shown(self, now: float) -> LastFault:
        """The death as a status shows it."""
        return LastFault(
            epoch=self.epoch,
            kind=self.kind,
            cause=self.cause,
            exit_code=self.exit_code,
            ago_s=max(0.0, now - self.at),
            last_log=self.lines[-MAX_SHOWN_LINES:],
        )
