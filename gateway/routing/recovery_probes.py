"""When workers may answer again for a model that providers answer for.

Owns the count of health probes that came back. A health probe is a short sequence that really
runs through a
worker: being registered, or answering pings, proves nothing. Must not know how one is run.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.ids import WorkerId

PAUSE_S: Final = 0.5
"""After a health probe that did not come back."""
BUSY_PAUSE_S: Final = 0.1
"""After a busy answer, which is no failure: others use the worker who may not use providers."""


class RecoveryProbes:
    """Of one model while its fallback is on. `needed` must come back in a row."""

    __slots__ = ("_flying", "_is_excused", "_not_before", "_passed", "_serial", "needed")

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self._passed = 0
        self._serial = 0
        self._flying: WorkerId | None = None
        self._is_excused = False
        self._not_before = float("-inf")

    @property
    def is_enough(self) -> bool:
        """Whether workers have proved themselves."""
        return self._passed >= self.needed

    def next(self, free: Sequence[WorkerId], now: float) -> tuple[WorkerId, int] | None:
        """The worker that is tried now, one of those with a free place, and the health probe's
        number; None while one flies or none is due.
        """
        if not free or self._flying is not None or self.is_enough or now < self._not_before:
            return None
        self._serial += 1
        # In turn, so that every worker of a fleet that comes back is tried.
        self._flying = free[self._serial % len(free)]
        self._is_excused = False
        return self._flying, self._serial

    @property
    def is_excused(self) -> bool:
        """Whether the one that flies, or flew last, found no place."""
        return self._is_excused

    def look(self, ready: Mapping[WorkerId, bool], now: float) -> None:
        """Which workers are ready, and whether each is so crowded, and works, that a health probe
        has to wait there. One whose worker is not ready any more is forgotten, and all before it.
        """
        if self._flying is None:
            return
        if self._flying not in ready:
            self._reset(now)
        elif ready[self._flying]:
            self._is_excused = True

    def began_anew(self, worker_id: WorkerId, now: float) -> None:
        """That worker has nothing left of what it had, a health probe included."""
        if self._flying == worker_id:
            self._reset(now)

    def passed(self, serial: int) -> None:
        """That health probe came back. Old ones are ignored, here and below."""
        if self._flying is not None and serial == self._serial:
            self._flying = None
            self._passed += 1

    def served(self) -> None:
        """A user was served where no health probe finds a place: this proves as much."""
        self._passed += 1

    def not_served(self) -> None:
        """Nor was that user."""
        self._passed = 0

    def busy(self, serial: int, now: float) -> None:
        """The worker had no room for it."""
        if self._flying is not None and serial == self._serial:
            self._flying = None
            self._is_excused = True
            self._not_before = now + BUSY_PAUSE_S

    def late(self, serial: int, now: float) -> bool:
        """It is not back in time; True if that is a failure. Where others had all places meanwhile
        it waited for one, and is as good as sent away.
        """
        if not self._is_excused:
            return self.failed(serial, now)
        self.busy(serial, now)
        return False

    def failed(self, serial: int, now: float) -> bool:
        """It did not come back; True if it was awaited."""
        if self._flying is None or serial != self._serial:
            return False
        self._reset(now)
        self._not_before = now + PAUSE_S
        return True

    def begin(self, now: float) -> None:
        """Count anew: no worker is ready, or they answer again. Numbers go on, so that one that
        still flies is never taken for a later one.
        """
        self._reset(now)

    def _reset(self, now: float) -> None:
        self._flying = None
        self._is_excused = False
        self._passed = 0
        self._not_before = now
