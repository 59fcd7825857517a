"""Prices, limits and the ledger in the file."""

from pathlib import Path

import pytest

from config import Config, LedgerConfig, ledger_path, parse_config
from protocol.errors import ConfigError

PRICE = "price = { input = 0.28, cached_input = 0.028, output = 1 }\n"

GOOD = """
[ledger]
path = "~/ledger.sqlite"
currency = "EUR"

[[models]]
name = "m"
fallback = [{ provider = "p", model = "big" }]

[providers.p]
base_url = "https://p.example/v1"
price = { input = 0.28, cached_input = 0.028, output = 1 }
max_output_tokens = 8192
limits = { daily = 5.0, monthly = 50 }

[providers.p.models."vendor/large"]
price = { input = 3, output = 15 }

[[keys]]
name = "k"
hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
limits = { daily = 0 }
"""


def check(text: str) -> Config:
    return parse_config(text, "herma.toml")


def test_a_file_with_prices_and_limits() -> None:
    """Whole numbers are amounts too, and 0 is a limit."""
    config = check(GOOD)
    provider = config.providers["p"]
    assert provider.price is not None
    assert (provider.price.input, provider.price.output) == (0.28, 1.0)
    assert provider.limits.monthly == 50
    assert provider.models["vendor/large"].price is not None
    assert config.keys[0].limits.daily == 0
    assert config.keys[0].limits.any
    assert config.ledger.currency == "EUR"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("cached_input", "cached", ("unknown key `cached`", "cached_input")),
        ("daily = 5.0", "dayly = 5.0", ("unknown key `dayly`", "`daily`")),
        ("max_output_tokens", "max_output", ("max_output", "max_output_tokens")),
        ("input = 3", "inptu = 3", ("unknown key `inptu`",)),
        ("daily = 5.0", "daily = -1", ("daily",)),
        ("input = 0.28", "input = nan", ("input",)),
        ("monthly = 50", "monthly = inf", ("monthly",)),
        ('"EUR"', '"euro"', ("currency", "three capital letters")),
        (PRICE, "", ("`p`", "`big`", "price")),
    ],
)
def test_a_mistake_is_one_line(old: str, new: str, parts: tuple[str, ...]) -> None:
    """A mistake is one line that names its place."""
    assert old in GOOD
    with pytest.raises(ConfigError) as refused:
        check(GOOD.replace(old, new, 1))
    assert "\n" not in str(refused.value)
    for part in parts:
        assert part in str(refused.value)


UNPRICED = """
[[models]]
name = "m"
fallback = [{ provider = "p", model = "big" }]
[providers.p]
base_url = "https://p.example/v1"
"""
KEY = """
[[keys]]
name = "k"
hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
limits = { daily = 1 }
"""


def test_a_price_that_a_keys_limit_needs_must_be_there() -> None:
    """A price that a key's limit needs must be there, unless the key's prompts go to no provider,
    or the model has a price of its own.
    """
    with pytest.raises(ConfigError, match="key `k` has a spending limit"):
        check(UNPRICED + KEY)
    assert check(UNPRICED)
    assert check(UNPRICED + KEY + 'cloud = "never"\n')
    own = "[providers.p.models.big]\nprice = { input = 1, output = 2 }\n"
    assert check(UNPRICED + own + KEY)
    assert check(UNPRICED.replace("fallback", 'cloud = "never"\nfallback') + KEY)


CONVERSATION = "[limits.conversation]\nmoney = 1\n"
OWN_CONVERSATION = KEY.replace("limits = { daily = 1 }", "conversation = { money = 1 }")


@pytest.mark.parametrize(
    ("limit", "whose"),
    [
        (CONVERSATION, "each conversation has a spending limit"),
        (OWN_CONVERSATION, "each conversation of key `k` has a spending limit"),
    ],
)
def test_a_price_that_a_limit_of_conversations_needs_must_be_there(limit: str, whose: str) -> None:
    """Without it each request of a conversation would be refused, or cost without a limit."""
    with pytest.raises(ConfigError, match=whose):
        check(UNPRICED + limit)
    own = "[providers.p.models.big]\nprice = { input = 1, output = 2 }\n"
    assert check(UNPRICED + own + limit)
    assert check(UNPRICED + limit.replace("money", "turns"))


def test_keys_that_never_leave_the_house_need_no_price() -> None:
    """Keys whose prompts never go to a provider need no price, and neither do their
    conversations.
    """
    at_home = KEY.replace("limits = { daily = 1 }", 'cloud = "never"')
    assert check(UNPRICED + CONVERSATION + at_home)
    assert check(UNPRICED + OWN_CONVERSATION + 'cloud = "never"\n')


def test_the_ledger_lies_in_the_state_directory() -> None:
    """The ledger lies in the state directory of the XDG base directories; without any place for it
    there is an error.
    """
    ledger = LedgerConfig()
    assert ledger_path(ledger, {"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path(
        "/s/herma/ledger.sqlite"
    )
    assert ledger_path(ledger, {"HOME": "/h"}) == Path("/h/.local/state/herma/ledger.sqlite")
    assert ledger_path(LedgerConfig(path="/x/y"), {}) == Path("/x/y")
    with pytest.raises(ConfigError, match=r"\[ledger\] path"):
        ledger_path(ledger, {})
