"""When workers may answer again for a model that providers answer for.

Owns the count of canaries that came back. A canary is a short sequence that really runs through a
worker: being registered, or answering pings, proves nothing. Must not know how one is run.
"""

from collections.abc import Sequence
from typing import Final

from protocol.ids import WorkerId

PAUSE_S: Final = 0.5
"""After a canary that did not come back."""
BUSY_PAUSE_S: Final = 0.1
"""After a busy answer, which is no failure: others use the worker who may not use providers."""


class Canaries:
    """Of one model while its fallback is on. `needed` must come back in a row."""

    __slots__ = ("_flying", "_not_before", "_passed", "_serial", "needed")

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self._passed = 0
        self._serial = 0
        self._flying: WorkerId | None = None
        self._not_before = float("-inf")

    @property
    def is_enough(self) -> bool:
        """Whether workers have proved themselves."""
        return self._passed >= self.needed

    def next(self, ready: Sequence[WorkerId], now: float) -> tuple[WorkerId, int] | None:
        """The worker that is tried now and the canary's number; None while one flies or none is
        due. A canary whose worker is not ready any more is forgotten, and all before it.
        """
        if self._flying is not None and self._flying not in ready:
            self._reset(now)
        if not ready or self._flying is not None or self.is_enough or now < self._not_before:
            return None
        self._serial += 1
        # In turn, so that every worker of a fleet that comes back is tried.
        self._flying = ready[self._serial % len(ready)]
        return self._flying, self._serial

    def passed(self, serial: int) -> None:
        """That canary came back. Old ones are ignored, here and below."""
        if self._flying is not None and serial == self._serial:
            self._flying = None
            self._passed += 1

    def busy(self, serial: int, now: float) -> None:
        """The worker had no room for it."""
        if self._flying is not None and serial == self._serial:
            self._flying = None
            self._not_before = now + BUSY_PAUSE_S

    def failed(self, serial: int, now: float) -> bool:
        """It did not come back; True if it was awaited."""
        if self._flying is None or serial != self._serial:
            return False
        self._reset(now)
        self._not_before = now + PAUSE_S
        return True

    def gone(self, now: float) -> None:
        """No worker is ready: count anew."""
        self._reset(now)

    def _reset(self, now: float) -> None:
        self._flying = None
        self._passed = 0
        self._not_before = now
