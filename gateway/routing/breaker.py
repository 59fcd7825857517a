"""Who has failed lately.

Owns the judgement of one worker or provider from what came of its requests. Must not know requests.

A breaker never refuses by itself: who is open is asked last, not never, so that a fleet whose
breakers are all open still answers (peers refused 24 of 24 requests after one outage). Only a
provider that names a time (429 with Retry-After) is left alone until then.

    closed --`FAILURES` in a row--> open --`open_s` over--> trial, one request --success--> closed
                                     ^--------- failure, twice as long ---------'
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

FAILURES: Final = 3
FIRST_OPEN_S: Final = 5.0
LONGEST_OPEN_S: Final = 60.0
TRIAL_S: Final = 60.0
"""A trial whose end nobody tells (its client left) does not block the next one for longer."""

T = TypeVar("T")


class Breaker:
    """Times are on the caller's clock. Busy answers are no failures and must not be told to it.
    `is_open`: it has failed and not yet answered again.
    """

    __slots__ = ("_cool_until", "_failures", "_open_until", "_trial_until", "is_open", "open_s")

    def __init__(self) -> None:
        self.open_s = FIRST_OPEN_S
        self._failures = 0
        self.is_open = False
        self._open_until = float("-inf")
        self._trial_until = float("-inf")
        self._cool_until = float("-inf")

    def cooling_s(self, now: float) -> float:
        """How long it must be left alone; 0 if it may be asked."""
        return max(0.0, self._cool_until - now)

    def is_good(self, now: float) -> bool:
        """Whether it may be asked in its turn: closed, or open for long enough and not tried."""
        if now < self._cool_until:
            return False
        return not self.is_open or now >= max(self._open_until, self._trial_until)

    def soonest(self, now: float) -> float:
        """When it may be asked in its turn; the past if it may now."""
        return max(self._cool_until, self._open_until if self.is_open else now)

    def asked(self, now: float) -> None:
        """A request goes there; of an open one it is the trial."""
        if self.is_open and now >= self._open_until:
            self._trial_until = now + TRIAL_S

    def succeeded(self) -> bool:
        """It has answered. True if that closed it."""
        was_open = self.is_open
        self.is_open = False
        self._failures = 0
        self.open_s = FIRST_OPEN_S
        return was_open

    def failed(self, now: float) -> bool:
        """It has failed. True if that opened it, for `open_s`."""
        self._failures += 1
        if not self.is_open:
            if self._failures < FAILURES:
                return False
            self._open(now)
            return True
        # Requests sent before it opened fail late and say nothing new.
        if now >= self._open_until:
            self.open_s = min(LONGEST_OPEN_S, 2 * self.open_s)
            self._open(now)
        return False

    def refused(self) -> None:
        """It was busy: a trial that it has sent away told nothing, and the next one may come."""
        self._trial_until = float("-inf")

    def cool(self, now: float, seconds: float) -> bool:
        """It has asked to be left alone for so long. True if that is news."""
        was_cooling = bool(self.cooling_s(now))
        self._cool_until = max(self._cool_until, now + seconds)
        return not was_cooling

    def _open(self, now: float) -> None:
        self.is_open = True
        self._open_until = now + self.open_s
        self._trial_until = float("-inf")


def in_order(
    targets: Sequence[T], breaker_of: Callable[[T], Breaker], now: float
) -> tuple[list[T], float | None]:
    """Whom to ask, in order: the good ones as configured, then, as a last resort, the one of the
    others that is due soonest. Second: seconds until the first of those that asked to be left alone
    may be asked again; None unless all of them did.
    """
    awake = [target for target in targets if not breaker_of(target).cooling_s(now)]
    if targets and not awake:
        return [], min(breaker_of(target).cooling_s(now) for target in targets)
    good = [target for target in awake if breaker_of(target).is_good(now)]
    others = [target for target in awake if target not in good]
    last = min(others, key=lambda target: breaker_of(target).soonest(now), default=None)
    return ([*good, last] if last is not None else good), None
