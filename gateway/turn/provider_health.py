"""Provider health: which providers have failed lately.

Owns the breakers of providers and publishes their changes. Must not know requests or money.
"""

from collections.abc import Iterable, Sequence

import trio

from config import FallbackConfig
from gateway.routing import Breaker, in_order
from gateway.telemetry import BreakerClosed, BreakerOpen, EventFeed


class ProviderHealth:
    """One breaker for each of `names`, all closed at first."""

    def __init__(self, names: Iterable[str], feed: EventFeed) -> None:
        self._feed = feed
        self._names: tuple[str, ...] = ()
        self._breakers: dict[str, Breaker] = {}
        self.reconfigure(names)

    def reconfigure(self, names: Iterable[str], changed: Iterable[str] = ()) -> None:
        """Keep breakers for `names`. Providers in `changed` start with a closed one. Breakers of
        removed providers stay, because requests that run may still report to them.
        """
        self._names = tuple(names)
        for name in changed:
            if (breaker := self._breakers.pop(name, None)) is not None and breaker.is_open:
                self._feed.publish(BreakerClosed("provider", name))
        for name in self._names:
            self._breakers.setdefault(name, Breaker())

    def in_order(
        self, chain: Sequence[FallbackConfig]
    ) -> tuple[list[FallbackConfig], float | None]:
        """See `gateway.routing.breaker.in_order`."""
        return in_order(chain, lambda target: self._breakers[target.provider], trio.current_time())

    def asked(self, name: str) -> None:
        self._breakers[name].asked(trio.current_time())

    def succeeded(self, name: str) -> None:
        if self._breakers[name].succeeded():
            self._feed.publish(BreakerClosed("provider", name))

    def failed(self, name: str, reason: str) -> None:
        """The provider gave no answer, or broke one off."""
        breaker = self._breakers[name]
        if breaker.failed(trio.current_time()):
            self._feed.publish(BreakerOpen("provider", name, breaker.open_s, reason))

    def busy(self, name: str, retry_after_s: int | None) -> None:
        """The provider is at its limit, which is no failure. It may have asked for a pause."""
        breaker = self._breakers[name]
        breaker.refused()
        if retry_after_s is not None and breaker.cool(trio.current_time(), retry_after_s):
            reason = "it asks to be left alone"
            event = BreakerOpen("provider", name, retry_after_s, reason, cooling=True)
            self._feed.publish(event)

    def open_names(self) -> dict[str, bool]:
        """For each provider, whether it is now asked last or not at all."""
        now = trio.current_time()
        return {name: not self._breakers[name].is_good(now) for name in self._names}
