"""Ports that are held for others, and ports that are taken."""

import socket
from contextlib import closing

import pytest

from config import GatewayConfig
from gateway.http.server.listen import listen
from herma.preflight import check_worker_ports, claim_port
from protocol.errors import ConfigError
from tests.fakes.ports import free_ports


async def test_a_claimed_port_is_for_those_who_share_it() -> None:
    """Processes that set SO_REUSEPORT listen there, as often as they like; nobody else can."""
    with closing(claim_port(GatewayConfig(port=0))) as claim:
        port = claim.getsockname()[1]
        assert port != 0
        for _ in range(2):
            with (
                await listen("127.0.0.1", port, silent_peer_s=30, is_shared=True),
                await listen("127.0.0.1", port, silent_peer_s=30, is_shared=True),
            ):
                pass
        with pytest.raises(ConfigError, match="taken"):
            await listen("127.0.0.1", port, silent_peer_s=30)


async def test_a_port_that_others_share_is_taken() -> None:
    """A second `herma gateway --processes` would otherwise get half of the first one's clients."""
    with closing(claim_port(GatewayConfig(port=0))) as claim:
        port = claim.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} .* taken"):
            claim_port(GatewayConfig(port=port))
        with await listen("127.0.0.1", port, silent_peer_s=30, is_shared=True):
            claim.close()
            with pytest.raises(ConfigError, match="taken"):
                claim_port(GatewayConfig(port=port))
    claim_port(GatewayConfig(port=port)).close()


def test_a_worker_port_of_a_further_process_is_looked_at_too() -> None:
    """The second one's is as good a reason not to start as the first one's."""
    port = free_ports(2)
    bind = f"tcp://127.0.0.1:{port}"
    with socket.create_server(("127.0.0.1", port + 1)):
        with pytest.raises(ConfigError, match=f"port {port + 1} .*worker_bind"):
            check_worker_ports(GatewayConfig(worker_bind=bind, processes=2))
        check_worker_ports(GatewayConfig(worker_bind=bind, processes=1))
