"""What differs between the processes that share a port."""

import pytest

from config import Config, GatewayConfig, KeyConfig, RateLimitConfig
from gateway.gateway_index import GatewayIndex, gateway_index_of
from protocol.errors import ConfigError

BIND = "tcp://127.0.0.1:8090"


def test_a_process_of_its_own_changes_nothing() -> None:
    """One gateway runs by its file as it stands, and needs no name."""
    config, gateway_index = Config(), GatewayIndex()
    assert gateway_index.config(config) is config
    assert (gateway_index.name, gateway_index.neighbours(BIND)) == (None, ())


def test_processes_have_nothing_in_common_but_the_port() -> None:
    """Worker addresses and own ports differ; each lists all the others. The ledger is shared."""
    config = Config(gateway=GatewayConfig(worker_bind=BIND, port=80, process_port=9100))
    gateway_indexes = [GatewayIndex(index, 3) for index in range(3)]
    own = [gateway_index.config(config) for gateway_index in gateway_indexes]
    binds = [one.gateway.worker_bind for one in own]
    assert binds == ["tcp://127.0.0.1:8090", "tcp://127.0.0.1:8091", "tcp://127.0.0.1:8092"]
    assert [one.gateway.process_port for one in own] == [9100, 9101, 9102]
    assert {one.gateway.port for one in own} == {80}
    assert {one.ledger for one in own} == {config.ledger}
    for gateway_index, bind in zip(gateway_indexes, binds, strict=True):
        assert {bind, *gateway_index.neighbours(BIND)} == set(binds)


def test_a_seat_is_read_from_the_command_line() -> None:
    """The command line says which process this is and how many there are, counted from 0."""
    assert gateway_index_of("2/4") == GatewayIndex(2, 4)


@pytest.mark.parametrize("text", ["4/4", "1", "a/b", "-1/4", "0/0", ""])
def test_a_seat_that_is_none_is_refused(text: str) -> None:
    """The range is named."""
    with pytest.raises(ConfigError, match="--process"):
        gateway_index_of(text)


def test_each_process_keeps_its_part_of_a_rate_limit() -> None:
    """All of them together let through what the file says."""
    whole, part = RateLimitConfig(requests_per_minute=9), RateLimitConfig(requests_per_minute=3)
    key = KeyConfig(name="k", hash="sha256:" + "0" * 64, rate_limit=whole)
    gateway = GatewayConfig(worker_bind=BIND, rate_limit=whole, address_rate_limit=whole)
    own = GatewayIndex(1, 3).config(Config(gateway=gateway, keys=(key,)))
    found = (own.gateway.rate_limit, own.gateway.address_rate_limit, own.keys[0].rate_limit)
    assert found == (part, part, part)
