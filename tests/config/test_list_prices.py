"""The list of prices that comes with Herma, and an operator's own."""

import re
from pathlib import Path

import pytest

from config import LedgerConfig, ProviderConfig, list_prices, listed_price
from config.load import find_mistakes
from protocol.errors import ConfigError


def test_each_price_has_a_source_and_a_day() -> None:
    """Each price has a source and a day, and none is free, or cheaper for output than for input,
    which would be a slip.
    """
    found = list_prices(LedgerConfig())
    assert len(found) >= 4
    for host, listed in found.items():
        assert re.fullmatch(r"[a-z.]+", host)
        assert listed.source.startswith("https://")
        assert listed.read.year >= 2026
        for price in listed.models.values():
            assert 0 < price.input < price.output
            assert price.cached_input is None or 0 < price.cached_input < price.input


def test_a_provider_is_known_by_its_host() -> None:
    prices = list_prices(LedgerConfig())
    table = ProviderConfig(base_url="https://api.deepseek.com/v1")
    price = listed_price(prices, table, "deepseek-v4-pro")
    assert price is not None
    assert (price.input, price.cached_input, price.output) == (1.32, 0.044, 3.96)
    assert listed_price(prices, table, "deepseek-v9") is None
    elsewhere = ProviderConfig(base_url="https://api.deepseek.com.example/v1")
    assert listed_price(prices, elsewhere, "deepseek-v4-pro") is None


@pytest.mark.parametrize("ledger", [{"list_prices": "none"}, {"currency": "EUR"}])
def test_none_and_another_currency_are_no_list(ledger: dict[str, str]) -> None:
    """Dollars are not euros."""
    assert list_prices(LedgerConfig(**ledger)) == {}


def test_a_broken_list_is_named_by_config_check(tmp_path: Path) -> None:
    """A broken list is named by `config check`, with its line in the configuration."""
    path = tmp_path / "prices.toml"
    path.write_text('["api.x.ai"]\nread = "soon"\nsource = "s"\nmodels = {}\n')
    with pytest.raises(ConfigError, match="list_prices"):
        list_prices(LedgerConfig(list_prices=str(path)))
    text = f'[ledger]\nlist_prices = "{path}"\n'
    (mistake,) = find_mistakes(text, "herma.toml")
    assert mistake.startswith("herma.toml:2: ")
    assert str(path) in mistake
