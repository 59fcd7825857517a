"""Which addresses stay on this machine, and those of sibling processes."""

import pytest

from protocol.addresses import is_local_address, nth_address, sibling_address
from protocol.errors import ConfigError


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:8090",
        "tcp://127.1.2.3:*",
        "tcp://localhost:8090",
        "tcp://[::1]:8090",
        "ipc:///run/herma.sock",
        "ipc://@herma",
    ],
)
def test_local_addresses(address: str) -> None:
    """Loopback and ipc are reached from this machine only."""
    assert is_local_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://0.0.0.0:8090",
        "tcp://*:8090",
        "tcp://[::]:8090",
        "tcp://10.0.0.1:8090",
        "tcp://eth0:8090",
        "tcp://worker.example:8090",
        "tcp://localhost.example:8090",
        "udp://127.0.0.1:8090",
        "127.0.0.1:8090",
        "",
    ],
)
def test_public_addresses(address: str) -> None:
    """Everything else counts as public, what we do not understand included."""
    assert not is_local_address(address)


@pytest.mark.parametrize(
    ("address", "index", "expected"),
    [
        ("tcp://127.0.0.1:8090", 0, "tcp://127.0.0.1:8090"),
        ("tcp://127.0.0.1:8090", 3, "tcp://127.0.0.1:8093"),
        ("tcp://[::1]:8090", 1, "tcp://[::1]:8091"),
        ("tcp://*:65534", 1, "tcp://*:65535"),
        ("ipc:///run/herma.sock", 0, "ipc:///run/herma.sock"),
        ("ipc:///run/herma.sock", 2, "ipc:///run/herma.sock-2"),
    ],
)
def test_addresses_of_several_processes(address: str, index: int, expected: str) -> None:
    """Ports count up, paths get a number; the first process has what was configured."""
    assert nth_address(address, index) == expected


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("tcp://127.0.0.1:*", "name a port"),
        ("tcp://127.0.0.1:0", "name a port"),
        ("tcp://127.0.0.1", "name a port"),
        ("nonsense", "name a port"),
        ("tcp://127.0.0.1:65535", "the last one is 65535"),
    ],
)
def test_what_cannot_be_counted_on_from_is_refused(address: str, says: str) -> None:
    """Any free port has no next one that workers could know."""
    with pytest.raises(ConfigError, match=says):
        nth_address(address, 1)


@pytest.mark.parametrize(
    ("address", "dialled", "expected"),
    [
        ("tcp://0.0.0.0:8091", "tcp://gpu-1.lan:8090", "tcp://gpu-1.lan:8091"),
        ("tcp://127.0.0.1:8091", "tcp://localhost:8090", "tcp://localhost:8091"),
        ("tcp://*:8090", "tcp://[fd00::1]:8091", "tcp://[fd00::1]:8090"),
        ("ipc:///run/herma-1", "ipc:///run/herma", "ipc:///run/herma-1"),
    ],
)
def test_a_sibling_is_on_the_dialled_host(address: str, dialled: str, expected: str) -> None:
    """A bind address is useless to others: 0.0.0.0 is every host itself."""
    assert sibling_address(address, dialled) == expected
