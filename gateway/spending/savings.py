"""What our own workers save against the cloud.

Owns the tokens that they computed, by UTC day and model, and what a provider would have charged for
them. Must not know clocks or the ledger.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, final

from config import Config
from gateway.api import Usage
from gateway.spending.limits import Saving, window_of
from gateway.spending.prices import Price, tariff_of

_NOTHING = Usage(0, 0, 0)


class CloudPrice(NamedTuple):
    """Where a model would be answered otherwise, and for how much."""

    provider: str
    price: Price


def cloud_prices(config: Config) -> dict[str, CloudPrice]:
    """By model, the first provider of its fallback with a price. Models without one are missing."""
    prices: dict[str, CloudPrice] = {}
    for model in config.models:
        for target in model.fallback:
            price = tariff_of(config.providers[target.provider], target.model).price
            if price is not None:
                prices.setdefault(model.name, CloudPrice(target.provider, price))
    return prices


@final
class LocalUse:
    """Tokens by model of this month; those of earlier ones are dropped. `prices` may change."""

    def __init__(self, prices: Mapping[str, CloudPrice]) -> None:
        self.prices = prices
        self._days: dict[tuple[str, str], Usage] = {}
        self._month = ""

    def add(self, day: str, model: str, usage: Usage) -> None:
        """Our workers computed this on `day`."""
        if (month := window_of("monthly", day)) > self._month:
            self._month = month
            for place in [place for place in self._days if place[0] < month]:
                del self._days[place]
        place = day, model
        before = self._days.get(place, _NOTHING)
        self._days[place] = Usage(
            before.prompt_tokens + usage.prompt_tokens,
            before.cached_tokens + usage.cached_tokens,
            before.completion_tokens + usage.completion_tokens,
        )

    def savings(self, day: str) -> tuple[Saving, ...]:
        """Of the month that `day` lies in, by model."""
        month = window_of("monthly", day)
        models = sorted({model for at, model in self._days if at.startswith(month)})
        return tuple(self._saving(model, day, month) for model in models)

    def _saving(self, model: str, day: str, month: str) -> Saving:
        days = [(at, one) for (at, name), one in self._days.items() if name == model]
        whole = _sum(usage for at, usage in days if at.startswith(month))
        today = _sum(usage for at, usage in days if at == day)
        found = self.prices.get(model)
        return Saving(
            model=model,
            provider="" if found is None else found.provider,
            prompt_tokens=whole.prompt_tokens,
            cached_tokens=whole.cached_tokens,
            completion_tokens=whole.completion_tokens,
            month=None if found is None else found.price.cost(whole),
            day=None if found is None else found.price.cost(today),
        )


def _sum(usages: Iterable[Usage]) -> Usage:
    prompt = cached = completion = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        cached += usage.cached_tokens
        completion += usage.completion_tokens
    return Usage(prompt, cached, completion)
