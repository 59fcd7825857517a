"""Decides when a dead engine is started again.

Owns the back-off and the limit of failed starts. Must not know processes or clocks, nor the cause
of a death: the caller passes the time of death and whether another try could help.
"""

from typing import Final

FIRST_DELAY_S: Final = 0.1
MAX_DELAY_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0
MAX_FAILED_STARTS: Final = 5
OUTSIDE_DELAY_S: Final = 10.0
"""The least delay after a failed start whose cause may pass by itself. Five tries span 90 s; a boot
may load a driver or reach a network later than it starts the worker.
"""


class RestartPolicy:
    """The delays begin with `first_delay_s`, double up to 30 s, and begin again after 60 s of
    health. Five failed starts in a row end the restarts; a permanent cause ends them at once.

    An engine that becomes ready and dies again is restarted without limit, with growing delays. An
    engine that never becomes ready is given up, because each try may leave something behind. A try
    of an attached engine leaves nothing behind. Once it has been ready, it is tried again without
    limit, because a proxy in front of it may refuse for minutes while the engine restarts.
    """

    def __init__(self, first_delay_s: float = FIRST_DELAY_S) -> None:
        self._first_delay_s = first_delay_s
        self.reset()

    def reset(self) -> None:
        """Forget failed starts: an operator has requested a restart."""
        self._delay_s = self._first_delay_s
        self._failed_starts = 0
        self._ready_at: float | None = None
        self._has_served = False

    def is_endless(self, *, is_attached: bool) -> bool:
        """Whether the engine is tried again whatever it answers."""
        return is_attached and self._has_served

    @property
    def failed_starts(self) -> int:
        """The number of starts in a row that never became ready."""
        return self._failed_starts

    def ready(self, now: float) -> None:
        """Note that the engine has generated tokens."""
        self._ready_at = now
        self._failed_starts = 0
        self._has_served = True

    def exited(
        self,
        now: float,
        *,
        is_permanent: bool = False,
        is_outside: bool = False,
        is_attached: bool = False,
    ) -> float | None:
        """Seconds to wait before the next start; None: start no more. `is_outside`: the cause lies
        outside the engine, and may pass.
        """
        if self._ready_at is None:
            self._failed_starts += 1
            gives_up = is_permanent or self._failed_starts >= MAX_FAILED_STARTS
            if gives_up and not self.is_endless(is_attached=is_attached):
                return None
            if is_outside:
                self._delay_s = max(self._delay_s, OUTSIDE_DELAY_S)
        elif now - self._ready_at >= HEALTHY_AFTER_S:
            self._delay_s = self._first_delay_s
        self._ready_at = None
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, MAX_DELAY_S)
        return delay_s
