"""How often one worker falls asleep and wakes.

Owns the judgement that the worker changes too often. Must not know workers or how one sleeps. Times
are arguments.
"""

from collections import deque
from typing import Final

WATCHED_S: Final = 600.0
THRASHING_WAKES: Final = 4
THRASHING_SHARE: Final = 0.5
"""A worker thrashes that has woken so often in the watched time, and was neither awake nor asleep
for this share of the time since the first of these wakes began.
"""
TOLD_AGAIN_S: Final = 3600.0
_MOST_CHANGES: Final = 4096
"""The most changes that are kept of the watched time: each change takes longer than 0.15 s."""


class ChangeWatch:
    """The changes of one worker. Times are arguments."""

    def __init__(self) -> None:
        self.changing_since: float | None = None
        self._spans: deque[tuple[float, float, bool]] = deque(maxlen=_MOST_CHANGES)
        self._told_at = float("-inf")

    def began(self, now: float) -> None:
        """The worker begins to fall asleep or to wake."""
        if self.changing_since is None:
            self.changing_since = now

    def ended(self, now: float, *, is_wake: bool) -> tuple[int, int] | None:
        """The change is over. Returns the number of wakes and the percentage of time that changes
        took, if that is too much and was not told within the hour.
        """
        if self.changing_since is None:
            return None
        self._spans.append((self.changing_since, now, is_wake))
        self.changing_since = None
        while self._spans and self._spans[0][1] < now - WATCHED_S:
            self._spans.popleft()
        wakes = sum(woke for _, _, woke in self._spans)
        first = self._spans[0][0]
        share = sum(end - begin for begin, end, _ in self._spans) / max(1e-9, now - first)
        if wakes < THRASHING_WAKES or share < THRASHING_SHARE or now < self._told_at + TOLD_AGAIN_S:
            return None
        self._told_at = now
        return wakes, round(100 * share)
