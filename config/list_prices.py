"""List prices of common providers, for what the configuration gives no price.

Owns the form of the list and the choice of the file: the one that comes with Herma
(`list_prices.toml`, each provider with its source and its day), the operator's, or none. Must not
know usage, or what a price is used for.
"""

import datetime as dt
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from config.tables import LedgerConfig, PriceConfig, ProviderConfig
from protocol.errors import ConfigError

CURRENCY: Final = "USD"
"""The currency of the list that comes with Herma. An operator's own list is in the ledger's
currency.
"""

_OWN_FILE: Final = Path(__file__).with_name("list_prices.toml")

OWN: Final = "builtin"
NONE: Final = "none"


class ListedProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prices of one host by model, in units of a currency per million tokens. `source` says
    where they stand, `read` when they stood there.
    """

    read: dt.date
    source: str
    models: dict[str, PriceConfig]


ListPrices = Mapping[str, ListedProvider]
"""The prices of models by the host of a provider's `base_url`."""


def list_prices(ledger: LedgerConfig) -> ListPrices:
    """The list that `[ledger]` asks for; empty without one, or if its currency is another.

    Raises `ConfigError` if the file cannot be read.
    """
    if ledger.list_prices == NONE or (ledger.list_prices == OWN and ledger.currency != CURRENCY):
        return {}
    path = _OWN_FILE if ledger.list_prices == OWN else Path(ledger.list_prices)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(raw, dict[str, ListedProvider])
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"[ledger] list_prices: {path} cannot be read: {error}; "
            f'"{OWN}" takes the list of Herma, "{NONE}" no list'
        ) from error


def listed_price(prices: ListPrices, table: ProviderConfig, model: str) -> PriceConfig | None:
    """The list price of `model` at the provider; None if the list has none."""
    listed = prices.get(urlsplit(table.base_url).hostname or "")
    return None if listed is None else listed.models.get(model)
