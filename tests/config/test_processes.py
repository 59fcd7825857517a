"""What several gateway processes cannot do together."""

from hashlib import sha256

import pytest

from config import parse_config, with_gateway
from protocol.errors import ConfigError

PROVIDER = """
[providers.p]
base_url = "http://127.0.0.1:1/v1"
price = { input = 1, output = 1 }
"""
KEY = f"""
[[keys]]
name = "k"
hash = "sha256:{sha256(b"k").hexdigest()}"
"""


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ('[gateway]\nworker_bind = "tcp://127.0.0.1:*"', "name a port"),
        ("[gateway]\nprocess_port = 65535", "1 to 65534"),
        ("[gateway]\nprocess_port = 0", "1 to 65534"),
    ],
)
def test_what_one_process_alone_can_do_is_refused_to_several(tables: str, says: str) -> None:
    """A file that only one process can serve is refused for several, and right for one."""
    config = parse_config(tables, "herma.toml")
    assert with_gateway(config, "herma.toml", processes=1) == config
    with pytest.raises(ConfigError, match=says):
        with_gateway(config, "herma.toml", processes=2)


def test_the_file_itself_is_held_to_it() -> None:
    """The rule holds for the file itself, and not only for the command line."""
    with pytest.raises(ConfigError, match="1 to 65532"):
        parse_config("[gateway]\nprocesses = 4\nprocess_port = 65535", "herma.toml")


def test_several_processes_may_have_limits() -> None:
    """Several processes may have limits, because they share one ledger."""
    limited = f"{PROVIDER}limits = {{ daily = 1 }}\n{KEY}limits = {{ monthly = 1 }}"
    config = parse_config(f"[gateway]\nprocesses = 4\n{limited}", "herma.toml")
    assert config.gateway.processes == 4


@pytest.mark.parametrize("processes", [0, 65])
def test_a_number_of_processes_has_bounds(processes: int) -> None:
    """A worker dials 64 gateways at the most."""
    with pytest.raises(ConfigError, match="processes"):
        parse_config(f"[gateway]\nprocesses = {processes}", "herma.toml")
