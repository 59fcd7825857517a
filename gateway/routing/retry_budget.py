"""How much may be tried again, in the whole fleet.

Owns the bucket from which each retry takes a token. Without it a fault that every request meets
would be met several times by each: the load grows just when little of it can be served. Must not
know what is retried.

A move away from a dead engine is no retry: it happens once per death, and what causes deaths is
found by `quarantine.py`.
"""

from typing import Final

PER_REQUEST: Final = 0.2
"""A fifth more work than was asked for, in the long run."""
FLOOR_PER_S: Final = 5.0
"""A fleet with little to do may always try again."""
MOST: Final = 100.0
"""One bad moment of a busy fleet: all that is under way may be tried again once."""


class RetryBudget:
    """A token bucket; it begins full. Times are on the caller's clock."""

    __slots__ = ("_at", "_tokens", "num_refused")

    def __init__(self) -> None:
        self._tokens = MOST
        self._at: float | None = None
        self.num_refused = 0

    def requested(self) -> None:
        """A new request came."""
        self._tokens = min(MOST, self._tokens + PER_REQUEST)

    def take(self, now: float) -> bool:
        """Whether one thing may be tried again."""
        if self._at is not None:
            self._tokens = min(MOST, self._tokens + max(0.0, now - self._at) * FLOOR_PER_S)
        self._at = now
        if self._tokens < 1.0:
            self.num_refused += 1
            return False
        self._tokens -= 1.0
        return True
