"""Provider health: which providers have failed lately, and which models there.

Owns the breakers of providers and publishes their changes. Limits, prices and what an account may
use differ between the models of a provider: what it says of one model, a pause included, says
nothing about the others there. Must not know requests or money.
"""

from collections.abc import Iterable, Sequence

import trio

from config import FallbackConfig
from gateway.routing import BothBreakers, Breaker, in_order
from gateway.telemetry import BreakerClosed, BreakerOpen, EventFeed


class ProviderHealth:
    """One breaker for each of `names`, all closed at first, and one for each model at a provider
    that has failed or asked for a pause, by the provider's name and the model's.
    """

    def __init__(self, names: Iterable[str], feed: EventFeed) -> None:
        self._feed = feed
        self._names: tuple[str, ...] = ()
        self._breakers: dict[str, Breaker] = {}
        self._of_models: dict[tuple[str, str], Breaker] = {}
        self.num_waiting = 0
        """Requests that wait for the end of a pause."""
        self.reconfigure(names)

    def reconfigure(self, names: Iterable[str], changed: Iterable[str] = ()) -> None:
        """Keep breakers for `names`. Providers in `changed` start with a closed one. Breakers of
        removed providers stay, because requests that run may still report to them.
        """
        self._names = tuple(names)
        for name in changed:
            if (breaker := self._breakers.pop(name, None)) is not None and breaker.is_open:
                self._feed.publish(BreakerClosed("provider", name))
            for model in [model for provider, model in self._of_models if provider == name]:
                self._close(name, model)
                self._of_models.pop((name, model), None)
        for name in self._names:
            self._breakers.setdefault(name, Breaker())

    def in_order(
        self, chain: Sequence[FallbackConfig]
    ) -> tuple[list[FallbackConfig], float | None]:
        """See `gateway.routing.breaker.in_order`."""
        return in_order(chain, self._breaker_of, trio.current_time())

    def asked(self, target: FallbackConfig) -> None:
        self._breaker_of(target).asked(trio.current_time())

    def succeeded(self, target: FallbackConfig) -> None:
        name = target.provider
        if self._breakers[name].succeeded():
            self._feed.publish(BreakerClosed("provider", name))
        if self._of_models:
            self._close(name, target.model)

    def failed(self, name: str, reason: str) -> None:
        """The provider gave no answer, or broke one off."""
        breaker = self._breakers[name]
        if breaker.failed(trio.current_time()):
            self._feed.publish(BreakerOpen("provider", name, breaker.open_s, reason))

    def model_failed(self, target: FallbackConfig, reason: str) -> None:
        """The provider refuses us the model."""
        self._breakers[target.provider].refused()
        breaker = self._of_models.setdefault((target.provider, target.model), Breaker())
        if breaker.failed(trio.current_time()):
            event = BreakerOpen("provider", _shown(target), breaker.open_s, reason)
            self._feed.publish(event)

    def busy(self, target: FallbackConfig, retry_after_s: int) -> None:
        """The model is at a limit there, which is no failure, and the provider asks for a pause."""
        self._breakers[target.provider].refused()
        breaker = self._of_models.setdefault((target.provider, target.model), Breaker())
        breaker.refused()
        if breaker.cool(trio.current_time(), retry_after_s):
            reason = "it asks to be left alone"
            event = BreakerOpen("provider", _shown(target), retry_after_s, reason, cooling=True)
            self._feed.publish(event)

    def open_names(self) -> dict[str, bool]:
        """For each provider, whether it, or a model there, is now asked last or not at all."""
        now = trio.current_time()
        found = {name: not self._breakers[name].is_good(now) for name in self._names}
        for (name, _), breaker in self._of_models.items():
            if name in found and not breaker.is_good(now):
                found[name] = True
        return found

    def _breaker_of(self, target: FallbackConfig) -> Breaker | BothBreakers:
        breaker = self._breakers[target.provider]
        of_model = self._of_models.get((target.provider, target.model))
        return breaker if of_model is None else BothBreakers(breaker, of_model)

    def _close(self, provider: str, model: str) -> None:
        """A model at a provider has answered. A pause that another request was told still holds."""
        breaker = self._of_models.get((provider, model))
        if breaker is None:
            return
        if breaker.succeeded():
            self._feed.publish(BreakerClosed("provider", f"{provider}/{model}"))
        if not breaker.cooling_s(trio.current_time()):
            del self._of_models[provider, model]


def _shown(target: FallbackConfig) -> str:
    return f"{target.provider}/{target.model}"
