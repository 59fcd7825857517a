"""The app on a port, over hypercorn's trio connections.

Owns the listening socket, the start and the end of serving: hypercorn may be replaced behind
`serve`. Must not know routes.

hypercorn shields its writes from cancellation, so a client that stops reading could hold a
shutdown forever; TCP_USER_TIMEOUT makes the kernel give such a peer up.
"""

import errno
import functools
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from hypercorn.config import Config as HypercornConfig
from starlette.types import ASGIApp

from gateway.http.connection import Connections
from protocol.errors import ConfigError

SHUTDOWN_GRACE_S: Final = 10.0
IDLE_CONNECTION_S: Final = 75.0
"""Longer than the pools of common clients keep an idle connection (5 to 60 s)."""
SILENT_PEER_S: Final = 30.0
"""How long a peer may leave sent bytes unread or unacknowledged."""
_BACKLOG: Final = 1024
_MAX_HEAD_BYTES: Final = 64 * 2**10

_log = logging.getLogger(__name__)


async def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    shutdown_trigger: Callable[[], Awaitable[None]] | None = None,
    drain_s: float = SHUTDOWN_GRACE_S,
    silent_peer_s: float = SILENT_PEER_S,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until cancelled, or until `shutdown_trigger` returns: then the port closes,
    idle connections too, and requests being answered get `drain_s` to end. A peer that leaves
    what was sent unread for `silent_peer_s` is given up.

    `task_status` gets the base URL ("http://127.0.0.1:8080") once connections are accepted.
    Raises `ConfigError` when the address cannot be bound.
    """
    listener = await _listen(host, port, silent_peer_s)
    connections = Connections(app, _hypercorn_config())
    async with trio.open_nursery() as handlers:
        async with trio.open_nursery() as accepting:
            await accepting.start(
                functools.partial(
                    trio.serve_listeners,
                    connections.handle,
                    [trio.SocketListener(trio.socket.from_stdlib_socket(listener))],
                    handler_nursery=handlers,
                )
            )
            task_status.started(_url(listener))
            await (shutdown_trigger or trio.sleep_forever)()
            accepting.cancel_scope.cancel()
        await connections.end_idle()
        handlers.cancel_scope.deadline = trio.current_time() + drain_s


def explain_bind_error(error: OSError, host: str, port: int) -> ConfigError:
    """What a failure to bind means for the operator, in one line."""
    match error.errno:
        case errno.EADDRINUSE:
            text = (
                f"port {port} on {host} is taken by another program; "
                "stop it or choose another port ([gateway] port, --port)"
            )
        case errno.EACCES:
            text = f"port {port} needs privileges; choose one above 1023 ([gateway] port, --port)"
        case errno.EADDRNOTAVAIL:
            text = f"{host} is no address of this machine; correct [gateway] host"
        case _:
            text = f"cannot listen on {host} port {port}: {error.strerror or error}"
    return ConfigError(text)


async def _listen(host: str, port: int, silent_peer_s: float) -> socket.socket:
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


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _hypercorn_config() -> HypercornConfig:
    config = HypercornConfig()
    config.accesslog = None
    config.errorlog = _log
    config.keep_alive_timeout = IDLE_CONNECTION_S
    config.h11_max_incomplete_size = _MAX_HEAD_BYTES
    config.include_server_header = False
    return config
