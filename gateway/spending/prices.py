"""What a cloud request costs, and the most that it can cost.

Owns the arithmetic of money and the upper bounds of tokens. Amounts are whole micro-units
(millionths of the ledger's currency), prices are micro-units per million tokens; both are integers,
so that sums are exact. Every cost is rounded up. Must not know limits.
"""

from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

import msgspec

from config import ListPrices, PriceConfig, ProviderConfig, listed_price
from gateway.api import ChatRequest, Usage

MICRO: Final = 1_000_000
_PER_TOKENS: Final = 1_000_000

TEMPLATE_TOKENS: Final = 512
"""The most tokens that a provider's template may add, such as a system text around tools."""

PART_TOKENS: Final = 32_768
"""The most tokens of an image, a sound or a file, which its address does not show."""

LONG_TOKENS: Final = 1_048_576
"""The most tokens of a video, and of a file that is given by its address or id alone: a window of a
million tokens takes hours of video or hundreds of pages.
"""

CAP_TOKENS: Final = 48
"""The most tokens by which the body grows when the client adds a cap on the output."""

_CAPS: Final = ("max_tokens", "max_completion_tokens")
_TEXT_PARTS: Final = frozenset({"text", "refusal"})
_encode = msgspec.json.Encoder().encode


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
    of the output. `request` is micro-units for one request that tokens do not price; None: unknown.
    """

    input: int
    cached_input: int
    output: int
    request: int | None = None

    @staticmethod
    def of_config(config: PriceConfig) -> "Price":
        """The configured price; by default cached tokens cost as much as others."""
        cached = config.input if config.cached_input is None else config.cached_input
        request = None if config.request is None else to_micro(config.request)
        return Price(to_micro(config.input), to_micro(cached), to_micro(config.output), request)

    def cost(self, usage: Usage) -> int:
        """What `usage` costs, in micro-units."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        return _rounded_up(
            (usage.prompt_tokens - cached) * self.input
            + cached * self.cached_input
            + usage.completion_tokens * self.output
        )

    def worst(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that these tokens can cost, in micro-units, whichever part of the prompt the
        provider has cached: some providers charge more for writing to their cache.
        """
        dearest = max(self.input, self.cached_input)
        return _rounded_up(prompt_tokens * dearest + output_tokens * self.output)

    def affordable_output(self, amount: int, prompt_tokens: int) -> int:
        """The most output tokens that `amount` micro-units pay for after such a prompt, by `worst`;
        0 if there are none, or if output is free and fewer tokens would not help.
        """
        left = amount * _PER_TOKENS - prompt_tokens * max(self.input, self.cached_input)
        return max(0, left // self.output) if self.output else 0


class FixedPrice(msgspec.Struct, frozen=True):
    """The price of requests that tokens do not price: `amount` micro-units, whatever is used."""

    amount: int

    def cost(self, usage: Usage) -> int:  # noqa: ARG002
        """What the request costs, in micro-units."""
        return self.amount


class Tariff(msgspec.Struct, frozen=True):
    """Price and output bound of one model at one provider. None: not configured. Without a price
    `listed` is that of the list, by which costs are shown and nothing is limited.
    """

    price: Price | None
    max_output_tokens: int | None
    listed: Price | None = None

    @property
    def is_free(self) -> bool:
        """Whether tokens cost nothing."""
        price = self.price
        return price is not None and not (price.input or price.cached_input or price.output)

    @property
    def known(self) -> Price | None:
        """The price by which costs are shown."""
        return self.listed if self.price is None else self.price


def tariff_of(table: ProviderConfig, model: str, prices: ListPrices | None = None) -> Tariff:
    """The tariff of `model` (its name there): its own entry, else the provider's, else that of
    the list `prices`.
    """
    own = table.models.get(model)
    price = own.price if own is not None and own.price is not None else table.price
    bound = own.max_output_tokens if own is not None else None
    listed = listed_price(prices or {}, table, model)
    return Tariff(
        None if price is None else Price.of_config(price),
        table.max_output_tokens if bound is None else bound,
        None if price is not None or listed is None else Price.of_config(listed),
    )


def prompt_bound(request: ChatRequest) -> int:
    """An upper bound of the prompt's tokens. It must hold for any tokenizer, so it counts bytes:
    byte-level vocabularies have no token of less than one.
    """
    return len(_encode(request.raw)) + TEMPLATE_TOKENS + _part_tokens(request.raw)


def output_bound(request: ChatRequest, model_bound: int | None) -> int | None:
    """An upper bound of the tokens of all choices, from the request's caps and from `model_bound`
    (for one choice); None if neither is given.
    """
    bound = None
    for name in _CAPS:
        cap = request.raw.get(name)
        if isinstance(cap, int) and (bound is None or cap > bound):
            bound = cap
    if bound is None or (model_bound is not None and model_bound < bound):
        bound = model_bound
    return None if bound is None else bound * request.n


def _part_tokens(raw: dict[str, Any]) -> int:
    """The most tokens of parts of the (already checked) messages that are not text."""
    num_tokens = 0
    for message in raw["messages"]:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part["type"] not in _TEXT_PARTS:
                num_tokens += LONG_TOKENS if _is_long(part) else PART_TOKENS
    return num_tokens


def _is_long(part: dict[str, Any]) -> bool:
    """Whether a part may be long although the body holds only its address or id."""
    kind = str(part["type"])
    inner = part.get(kind)
    if kind == "file":
        return not (isinstance(inner, dict) and inner.get("file_data"))
    text = inner.get("url") if isinstance(inner, dict) else inner
    return "video" in kind and not (isinstance(text, str) and text.startswith("data:"))


def _rounded_up(pico: int) -> int:
    return -(-pico // _PER_TOKENS)
