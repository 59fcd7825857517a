"""What a gateway that serves takes from a file that has changed."""

import msgspec
import pytest

from config import Config, GatewayConfig, gateway_changes, parse_config

OLD = """
[gateway]
port = 8080
max_queue = 4

[[models]]
name = "m"

[[models]]
name = "gone"

[providers.p]
base_url = "http://127.0.0.1:1"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
serves = "m"
"""

NEW = """
[gateway]
port = 9090
max_queue = 8
drain_s = 3

[[models]]
name = "m"
aliases = ["fast"]

[[models]]
name = "added"

[providers.p]
base_url = "http://127.0.0.1:2"

[ledger]
currency = "EUR"
"""


def _config(text: str) -> Config:
    return parse_config(text, "herma.toml")


def test_what_can_change_is_taken_and_the_rest_is_named() -> None:
    """The result has the new values of the first and the old ones of the second."""
    old, new = _config(OLD), _config(NEW)
    changes = gateway_changes(old, new)
    assert changes.taken == (
        "[gateway] max_queue",
        "model `m`",
        "model `gone` (gone)",
        "model `added` (new)",
        "provider `p`",
    )
    assert changes.kept == ("[gateway] port", "[gateway] drain_s", "[ledger]")
    config = changes.config
    assert (config.gateway.port, config.gateway.max_queue) == (8080, 8)
    assert config.models == new.models
    assert config.providers == new.providers
    assert config.ledger == old.ledger
    assert config.gateway.drain_s == old.gateway.drain_s


def test_the_same_file_changes_nothing() -> None:
    """The same file changes nothing, and neither does a file that differs only in tables of
    workers.
    """
    old = _config(OLD)
    assert gateway_changes(old, old).taken == gateway_changes(old, old).kept == ()
    without = msgspec.structs.replace(old, workers=())
    assert gateway_changes(old, without).taken == gateway_changes(old, without).kept == ()


@pytest.mark.parametrize("key", GatewayConfig.__struct_fields__)
def test_each_key_of_the_gateway_is_taken_or_kept(key: str) -> None:
    """Each key of the gateway is taken or kept, and named once."""
    old = Config()
    new = msgspec.structs.replace(old, gateway=msgspec.structs.replace(old.gateway, **{key: "x"}))
    changes = gateway_changes(old, new)
    assert [*changes.taken, *changes.kept] == [f"[gateway] {key}"]
    is_taken = getattr(changes.config.gateway, key) == "x"
    assert is_taken == bool(changes.taken)
