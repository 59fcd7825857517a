"""What tokens cost.

Owns the arithmetic of money. Amounts are whole micro-units (millionths of the ledger's currency),
prices are micro-units per million tokens; both are integers, so that sums are exact. Every cost is
rounded up. Must not know who may spend how much.
"""

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Final

import msgspec

from config import PriceConfig, ProviderConfig
from gateway.api import Usage

MICRO: Final = 1_000_000
_PER_TOKENS: Final = 1_000_000


def to_micro(amount: float) -> int:
    """`amount` units of the currency in micro-units, as it was written: 0.14 is 140,000."""
    return int((Decimal(str(amount)) * MICRO).to_integral_value(ROUND_CEILING))


def show_amount(micro: int, decimals: int = 6) -> str:
    """`micro` in units of the currency, rounded up to `decimals` (at most 6) places."""
    step = 10 ** (6 - decimals)
    whole, rest = divmod(-(-micro // step), 10**decimals)
    return f"{whole}.{rest:0{decimals}d}" if decimals else str(whole)


class Price(msgspec.Struct, frozen=True):
    """Micro-units per million tokens: of the prompt, of its part that the provider had cached, and
    of the output.
    """

    input: int
    cached_input: int
    output: int

    @staticmethod
    def of_config(config: PriceConfig) -> "Price":
        """The price as configured; cached tokens cost what others cost unless it says otherwise."""
        cached = config.input if config.cached_input is None else config.cached_input
        return Price(to_micro(config.input), to_micro(cached), to_micro(config.output))

    def cost(self, usage: Usage) -> int:
        """What `usage` costs, in micro-units."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        return _rounded_up(
            (usage.prompt_tokens - cached) * self.input
            + cached * self.cached_input
            + usage.completion_tokens * self.output
        )

    def worst(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that so many tokens can cost, in micro-units, whatever the provider has cached:
        some take more for writing their cache.
        """
        dearest = max(self.input, self.cached_input)
        return _rounded_up(prompt_tokens * dearest + output_tokens * self.output)

    def affordable_output(self, amount: int, prompt_tokens: int) -> int:
        """The most output tokens that `amount` micro-units pay for after such a prompt, by `worst`;
        0 if there are none, or if they cost nothing: fewer would not help.
        """
        left = amount * _PER_TOKENS - prompt_tokens * max(self.input, self.cached_input)
        return max(0, left // self.output) if self.output else 0


class Tariff(msgspec.Struct, frozen=True):
    """One model at one provider. None: the configuration does not say."""

    price: Price | None
    max_output_tokens: int | None


class Tariffs:
    """The tariff of every model at every provider; a model's own entry goes before the
    provider's.
    """

    def __init__(self, providers: Mapping[str, ProviderConfig]) -> None:
        self._providers = providers

    def of(self, provider: str, model: str) -> Tariff:
        """The tariff of `model` (its name there) at `provider`."""
        table = self._providers[provider]
        own = table.models.get(model)
        price = own.price if own is not None and own.price is not None else table.price
        bound = own.max_output_tokens if own is not None else None
        return Tariff(
            None if price is None else Price.of_config(price),
            table.max_output_tokens if bound is None else bound,
        )


def _rounded_up(pico: int) -> int:
    return -(-pico // _PER_TOKENS)
