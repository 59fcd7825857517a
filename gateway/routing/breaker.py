"""Circuit breakers: which workers and providers have failed lately.

Owns the judgement of one worker or provider from the results of its requests. Must not know
requests.

A breaker never refuses by itself: an open target is asked last, not never, so that a fleet whose
breakers are all open still answers (other gateways refused 24 of 24 requests after one outage).
Only a provider that names a time (429 with Retry-After) is left alone until then.

    closed --`FAILURES` in a row--> open --`open_s` over--> trial, one request --success--> closed
                                     ^--------- failure, twice as long ---------'
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

FAILURES: Final = 3
FIRST_OPEN_S: Final = 5.0
LONGEST_OPEN_S: Final = 60.0
TRIAL_S: Final = 60.0
"""A trial whose end is never reported (its client left) blocks the next trial for this time only.
"""

T = TypeVar("T")


class Breaker:
    """The breaker of one target, which is a worker or a provider. Times are on the caller's clock.
    An answer that the target is busy is not a failure: report it with `refused`. `is_open`: the
    target has failed, and has not answered since.
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
        """Seconds for which the target must not be asked; 0 if it may be."""
        return max(0.0, self._cool_until - now)

    def is_good(self, now: float) -> bool:
        """Whether the target may be asked in its usual order: the breaker is closed, or a trial is
        due.
        """
        if now < self._cool_until:
            return False
        return not self.is_open or now >= max(self._open_until, self._trial_until)

    def soonest(self, now: float) -> float:
        """When the target may be asked in its usual order; not after `now` if it may already."""
        return max(self._cool_until, self._open_until if self.is_open else now)

    def asked(self, now: float) -> None:
        """A request goes to the target; if a trial is due, this is the trial."""
        if self.is_open and now >= self._open_until:
            self._trial_until = now + TRIAL_S

    def succeeded(self) -> bool:
        """The target has answered. True if that closed the breaker."""
        was_open = self.is_open
        self.is_open = False
        self._failures = 0
        self.open_s = FIRST_OPEN_S
        return was_open

    def failed(self, now: float) -> bool:
        """The target has failed. True if that opened the breaker, for `open_s`."""
        self._failures += 1
        if not self.is_open:
            if self._failures < FAILURES:
                return False
            self._open(now)
            return True
        # Failures before `_open_until` are of requests sent before it opened: nothing new.
        if now >= self._open_until:
            self.open_s = min(LONGEST_OPEN_S, 2 * self.open_s)
            self._open(now)
        return False

    def refused(self) -> None:
        """The target was busy: a refused trial proves nothing, and the next one may come."""
        self._trial_until = float("-inf")

    def cool(self, now: float, seconds: float) -> bool:
        """The target asked for a pause of `seconds`. True unless it was pausing already."""
        was_cooling = bool(self.cooling_s(now))
        self._cool_until = max(self._cool_until, now + seconds)
        return not was_cooling

    def _open(self, now: float) -> None:
        self.is_open = True
        self._open_until = now + self.open_s
        self._trial_until = float("-inf")


class BothBreakers(NamedTuple):
    """The breaker of a target that has two: a provider's own, and that of a model there."""

    one: Breaker
    other: Breaker

    def cooling_s(self, now: float) -> float:
        """See `Breaker`."""
        return max(self.one.cooling_s(now), self.other.cooling_s(now))

    def is_good(self, now: float) -> bool:
        """See `Breaker`."""
        return self.one.is_good(now) and self.other.is_good(now)

    def soonest(self, now: float) -> float:
        """See `Breaker`."""
        return max(self.one.soonest(now), self.other.soonest(now))

    def asked(self, now: float) -> None:
        """See `Breaker`."""
        self.one.asked(now)
        self.other.asked(now)


def in_order(
    targets: Sequence[T], breaker_of: Callable[[T], Breaker | BothBreakers], now: float
) -> tuple[list[T], float | None]:
    """First, the targets to ask, in order: the good ones as configured, then as a last resort the
    one of the others whose trial is due soonest. Second, if all targets asked for a pause, the
    seconds until the first may be asked again; else None.
    """
    awake = [target for target in targets if not breaker_of(target).cooling_s(now)]
    if targets and not awake:
        return [], min(breaker_of(target).cooling_s(now) for target in targets)
    good = [target for target in awake if breaker_of(target).is_good(now)]
    others = [target for target in awake if target not in good]
    last = min(others, key=lambda target: breaker_of(target).soonest(now), default=None)
    return ([*good, last] if last is not None else good), None
