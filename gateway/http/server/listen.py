"""The listening socket.

Owns its options, and what a failure to bind means for the operator. Must not know who accepts.
Every server listens here, so that they differ in nothing but how they speak.
"""

import errno
import socket
from typing import Final

import trio

from protocol.errors import ConfigError

SHUTDOWN_GRACE_S: Final = 10.0
SILENT_PEER_S: Final = 30.0
"""How long a peer may leave sent bytes unread or unacknowledged."""
_BACKLOG: Final = 1024


async def listen(
    host: str, port: int, *, silent_peer_s: float, is_shared: bool = False
) -> socket.socket:
    """A socket that listens. `is_shared`: other processes listen on the same port, and the kernel
    spreads connections over them. A peer that leaves what was sent unread or unacknowledged for
    `silent_peer_s` is given up by the kernel.

    Raises `ConfigError` when the address cannot be bound.
    """
    bare_host = host.strip("[]")
    try:
        found = await trio.socket.getaddrinfo(bare_host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"unknown host {host!r}; correct [gateway] host") from error
    # One address only, so that port 0 means one port; clients of "localhost" all reach IPv4.
    family, kind, proto, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, kind, proto)
    try:
        # Accepted connections inherit the TCP options on Linux and the BSDs.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silent_peer_s * 1000)
            )
        listener.setblocking(False)
        listener.bind(address)
        # With SO_REUSEADDR a port that is taken may show only here.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise explain_bind_error(error, host, port) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The base URL that reaches it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def explain_bind_error(error: OSError, host: str, port: int) -> ConfigError:
    """What a failure to bind means for the operator, in one line."""
    match error.errno:
        case errno.EADDRINUSE:
            text = (
                f"port {port} on {host} is taken, by another program or by our own worker_bind; "
                "stop that program or choose another port ([gateway] port, --port)"
            )
        case errno.EACCES:
            text = f"port {port} needs privileges; choose one above 1023 ([gateway] port, --port)"
        case errno.EADDRNOTAVAIL:
            text = f"{host} is no address of this machine; correct [gateway] host"
        case _:
            text = f"cannot listen on {host} port {port}: {error.strerror or error}"
    return ConfigError(text)
