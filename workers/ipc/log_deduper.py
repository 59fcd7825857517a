"""Which causes of a trouble that lasts have been told.

Owns the memory behind "one line per cause". Must not know what a cause is of, nor who is told.
"""

from typing import Final

FORGET_S: Final = 30.0
"""A cause that was not met for so long is news again. Two that take turns are met all the time."""

_MAX_CAUSES: Final = 16


class LogDeduper:
    """`now` is seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._met_at: dict[str, float] = {}

    def is_news(self, cause: str, now: float) -> bool:
        """The cause is met. Whether it has yet to be told."""
        met_at = self._met_at.pop(cause, None)
        if met_at is None and len(self._met_at) >= _MAX_CAUSES:
            del self._met_at[next(iter(self._met_at))]
        self._met_at[cause] = now
        return met_at is None or now - met_at >= FORGET_S

    def clear(self) -> None:
        """The trouble is over: whatever comes is news."""
        self._met_at.clear()
