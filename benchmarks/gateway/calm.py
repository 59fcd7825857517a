"""Which runs had the machine to themselves.

Owns that judgement, from the yardstick alone: a run is set aside for what a fixed piece of work
took before and after it, never for its own figures. Must not know what was measured.
"""

from __future__ import annotations

from typing import Final

MOST_TRIES: Final = 6
"""For each run that counts. On a host that never calms down all of them count, and the report says
so."""


class Calm:
    """Runs are calm whose yardsticks are at most `within` times the best one seen so far."""

    def __init__(self, within: float) -> None:
        self.within = within
        self._best_ms = float("inf")

    def saw(self, ms: float) -> None:
        """Another reading of the yardstick."""
        self._best_ms = min(self._best_ms, ms)

    def is_calm(self, before_ms: float, after_ms: float) -> bool:
        """Whether the run between these two had the machine to itself."""
        self.saw(before_ms)
        self.saw(after_ms)
        return max(before_ms, after_ms) <= self.within * self._best_ms
