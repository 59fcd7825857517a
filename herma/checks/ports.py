"""The ports and paths that the processes of a gateway need on this host.

Owns the reservation of a port, and the lines for those that are taken.
"""

import errno
import socket
from contextlib import suppress
from typing import Final

from config import GatewayConfig
from protocol.addresses import nth_address
from protocol.errors import ConfigError

_PORT: Final = "[gateway] port, --port"


def check_port(gateway: GatewayConfig) -> None:
    """Raise `ConfigError` if the gateway's port is taken."""
    if gateway.port != 0:
        _check_free(gateway.host, gateway.port, _PORT)


def claim_port(gateway: GatewayConfig) -> socket.socket:
    """A bound socket that reserves the gateway's port, or a free one for port 0, without listening.
    Meanwhile only sockets of the same user that set SO_REUSEPORT can listen there.

    Raises `ConfigError` if the port cannot be bound or any other socket has it.
    """
    host, port = gateway.host, gateway.port
    try:
        claim = _bound(host, port, _PORT)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}; correct [gateway] host or port"
        ) from error
    # After the bind: with SO_REUSEPORT set before it, a port that others share would be granted.
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return claim


def check_process_ports(gateway: GatewayConfig) -> None:
    """Raise `ConfigError` if a port or path that one of the processes needs is taken."""
    from protocol.transport import check_ipc_is_free

    for index in range(gateway.processes):
        bind = gateway.worker_bind
        bind = bind if gateway.processes == 1 else nth_address(bind, index)
        check_ipc_is_free(bind)
        scheme, _, rest = bind.partition("://")
        host, _, port = rest.rpartition(":")
        if scheme == "tcp" and port not in ("0", "*"):
            _check_free(host, int(port), "[gateway] worker_bind, --worker-bind")
        if gateway.process_port is not None:
            _check_free(gateway.host, gateway.process_port + index, "[gateway] process_port")


def _check_free(host: str, port: int, option: str) -> None:
    """Raise `ConfigError` if the port is taken. The gateway reports all other errors."""
    with suppress(OSError, UnicodeError):
        _bound(host, port, option).close()


def _holder(port: int) -> str:
    """The program that listens there, as far as this user may see."""
    from herma.doctor.host import this_host
    from herma.doctor.network import holder_of

    here = this_host()
    pid = holder_of(here, port)
    if pid is None:
        return "another program"
    return f"{here.text(f'/proc/{pid}/comm').strip()}, process {pid}"


def _bound(host: str, port: int, option: str) -> socket.socket:
    """A socket bound there. Raises `ConfigError` if the port is taken, else `OSError`."""
    found = socket.getaddrinfo(
        host.strip("[]*") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    # The server chooses the same way: one address, IPv4 if there is one.
    family, kind, proto, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    probe = socket.socket(family, kind, proto)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    except OSError as error:
        probe.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is taken by {_holder(port)}; "
                f"stop it or choose another port ({option})"
            ) from error
        raise
    return probe
