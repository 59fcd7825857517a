"""Which addresses stay on this machine."""

import pytest

from protocol.addresses import is_local_address


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
