"""How fast prefixes come back from the host.

Owns the average over the latest loads. Must not read a clock, nor know what is loaded.
"""

from __future__ import annotations

from typing import Final, final

_MEMORY_S: Final = 10.0
"""About how many of the latest seconds with loads decide the rate."""

_LEAST_BYTES: Final = 2**20
"""Loads of less mostly measure the step that they wait for, and say nothing about the link."""


@final
class LoadMeter:
    """Bytes per second while any load is under way. A load waits for the end of a step, and shares
    the link with others: both are in the rate, because a request waits for both. Times are in
    seconds, of the same clock in all calls.
    """

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0
        self._since: float | None = None
        self._new_bytes = 0

    @property
    def bytes_per_s(self) -> float:
        """The average; 0 before the first load."""
        return self._bytes / self._seconds if self._seconds else 0.0

    def began(self, now: float) -> None:
        """Loads are under way, perhaps for a while already."""
        if self._since is None:
            self._since = now

    def loaded(self, num_bytes: int) -> None:
        """Count a part of a load that has come."""
        self._new_bytes += num_bytes

    def ended(self, now: float) -> None:
        """No load is under way any more."""
        seconds = 0.0 if self._since is None else now - self._since
        num_bytes, self._new_bytes, self._since = self._new_bytes, 0, None
        if seconds <= 0 or num_bytes < min(_LEAST_BYTES, self._bytes):
            return
        kept = max(0.0, 1.0 - seconds / _MEMORY_S)
        self._bytes = kept * self._bytes + num_bytes
        self._seconds = kept * self._seconds + seconds
