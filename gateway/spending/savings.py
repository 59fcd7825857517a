"""Savings: what the workers' answers would have cost in the cloud.

Owns the tokens that workers computed, by UTC day and model, and what a provider would have charged
for them. Must not know clocks or the ledger.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, final

from config import Config, ListPrices
from gateway.api import Usage
from gateway.spending.limits import Saving, window_of
from gateway.spending.prices import Price, tariff_of


class CloudPrice(NamedTuple):
    """The provider that would answer for a model otherwise, and its price."""

    provider: str
    price: Price


def cloud_prices(config: Config, listed: ListPrices | None = None) -> dict[str, CloudPrice]:
    """For each model, the first provider of its fallback with a price, its own or a `listed` one.
    Models without one are missing.
    """
    prices: dict[str, CloudPrice] = {}
    for model in config.models:
        for target in model.fallback:
            price = tariff_of(config.providers[target.provider], target.model, listed).known
            if price is not None:
                prices.setdefault(model.name, CloudPrice(target.provider, price))
    return prices


@final
class LocalUse:
    """The tokens of this month by model; tokens of earlier months are dropped. `prices` may
    change.
    """

    def __init__(self, prices: Mapping[str, CloudPrice]) -> None:
        self.prices = prices
        self._days: dict[tuple[str, str], list[int]] = {}
        self._month = ""

    def add(self, day: str, model: str, usage: Usage) -> None:
        """Our workers computed this on `day`."""
        counts = self._days.get((day, model))
        if counts is None:
            counts = self._add_place(day, model)
        counts[0] += usage.prompt_tokens
        counts[1] += usage.cached_tokens
        counts[2] += usage.completion_tokens

    def savings(self, day: str) -> tuple[Saving, ...]:
        """The savings in the month of `day`, by model."""
        month = window_of("monthly", day)
        models = sorted({model for at, model in self._days if at.startswith(month)})
        return tuple(self._saving(model, day, month) for model in models)

    def _add_place(self, day: str, model: str) -> list[int]:
        if (month := window_of("monthly", day)) > self._month:
            self._month = month
            self._days = {place: one for place, one in self._days.items() if place[0] >= month}
        return self._days.setdefault((day, model), [0, 0, 0])

    def _saving(self, model: str, day: str, month: str) -> Saving:
        days = [(at, one) for (at, name), one in self._days.items() if name == model]
        whole = _sum(one for at, one in days if at.startswith(month))
        today = _sum(one for at, one in days if at == day)
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


def _sum(counts: Iterable[Sequence[int]]) -> Usage:
    prompt, cached, completion = (sum(each) for each in zip((0, 0, 0), *counts, strict=True))
    return Usage(prompt, cached, completion)
