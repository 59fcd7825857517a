"""The server: listens, accepts connections and drains.

Owns the listening socket and its options, the tasks of all connections, and the operator's text for
a failure to bind. Must not know HTTP.
"""

import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, Final

import trio
from starlette.types import ASGIApp

from gateway.http.error_responses import error_of
from gateway.http.server.body_budget import BodyBudget
from gateway.http.server.connection import Connections, Readers, Service
from gateway.http.server.exchange import write_batch
from gateway.http.server.parser import ParserLimits
from gateway.http.server.read_deadlines import Deadlines
from gateway.http.server.response import HttpDate
from gateway.http.server.tls import Certificates, serve_tls
from housekeeping.process_start import BACKLOG
from protocol.errors import ConfigError

SHUTDOWN_GRACE_S: Final = 10.0
SILENT_PEER_S: Final = 30.0
"""How long a peer may leave sent bytes unread or unacknowledged."""
_MAX_ACCEPTS: Final = 64
"""Connections accepted in one cycle of the loop, so that a burst of them does not stop streams."""
_NO_ROOM_S: Final = 0.1
_LEAST_KEPT: Final = 32
_KEPT_SHARE: Final = 4
"""One descriptor of four, and 32 at least, are not for clients: workers, providers and files need
some, and idle clients would take all.
"""
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_LEFT: Final = frozenset(
    {
        errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENOPROTOOPT, errno.EOPNOTSUPP,
        errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT,
    }
)  # fmt: skip
"""Errors of `accept` on Linux that concern only the connection to be accepted; see accept(2)."""

_log = logging.getLogger(__name__)


async def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    shutdown_trigger: Callable[[], Awaitable[None]] | None = None,
    drain_s: float = SHUTDOWN_GRACE_S,
    silent_peer_s: float = SILENT_PEER_S,
    limits: ParserLimits | None = None,
    deadlines: Deadlines | None = None,
    is_shared: bool = False,
    certificates: Certificates | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until cancelled, or until `shutdown_trigger` returns. Then idle connections are
    closed, and requests that are being answered have `drain_s` to end. The port stays open as long
    as they last, because a balancer that finds it closed would cut them; the app refuses work. The
    connection of a peer that does not read for `silent_peer_s` is closed. `is_shared`: see
    `listen`. With `certificates` all connections use TLS.

    `task_status` gets the base URL ("http://127.0.0.1:8080") once connections are accepted.
    Raises `ConfigError` when the address cannot be bound.
    """
    listener = await listen(host, port, silent_peer_s=silent_peer_s, is_shared=is_shared)
    with closing(Readers()) as readers:
        async with trio.open_nursery() as upkeep:
            service = Service(
                app=app,
                limits=limits or ParserLimits(),
                deadlines=deadlines or Deadlines(),
                silent_peer_s=silent_peer_s,
                date=HttpDate(time.time),
                batch=write_batch,
                readers=readers,
                budget=BodyBudget(),
                senders=upkeep,
            )
            connections = Connections(service, listener.getsockname()[:2])
            upkeep.start_soon(connections.sweep)
            upkeep.start_soon(readers.run)
            async with trio.open_nursery() as handlers:
                with listener:
                    async with trio.open_nursery() as accepting:
                        accepting.start_soon(_accept, listener, connections, handlers, certificates)
                        task_status.started(url_of(listener, is_tls=certificates is not None))
                        await (shutdown_trigger or trio.sleep_forever)()
                        handlers.cancel_scope.deadline = trio.current_time() + drain_s
                        await connections.drain()
                        accepting.cancel_scope.cancel()
                connections.end_soon()
            upkeep.cancel_scope.cancel()


async def _accept(
    listener: socket.socket,
    connections: Connections,
    handlers: trio.Nursery,
    certificates: Certificates | None,
) -> None:
    """Accept connections until cancelled. Each gets a task in `handlers`, whose failure is logged
    and ends no other connection. A lasting lack of room is logged when it begins and ends.
    """
    lacks_room = False
    while True:
        await trio.lowlevel.wait_readable(listener)
        room = _room(listener)
        for _ in range(min(_MAX_ACCEPTS, max(1, room))):
            try:
                accepted, peer = _accepted(listener, room)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _NO_ROOM and not lacks_room:
                    lacks_room = True
                    _log.error("cannot accept a connection: %s%s", error.strerror, _hint(error))
                await _handle_accept_error(error)
                break
            if lacks_room:
                lacks_room = False
                _log.warning("connections are accepted again")
            accepted.setblocking(False)
            if certificates is None:
                handlers.start_soon(error_of, connections.handle, accepted, peer[:2])
            else:
                handle = connections.handle
                handlers.start_soon(error_of, serve_tls, accepted, peer[:2], certificates, handle)


def _accepted(listener: socket.socket, room: int) -> tuple[socket.socket, Any]:
    """A connection and its peer. Raises `OSError`, also without `room`."""
    if room <= 0:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return listener.accept()


def _room(listener: socket.socket) -> int:
    """How many connections may be accepted without using a descriptor that is not for clients. The
    kernel gives the lowest free descriptor.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:  # no limit, and on Linux a negative number
        return _MAX_ACCEPTS
    try:
        next_one = os.dup(listener.fileno())
    except OSError:
        return 0
    os.close(next_one)
    return soft - max(_LEAST_KEPT, soft // _KEPT_SHARE) - next_one


def _hint(error: OSError) -> str:
    if error.errno != errno.EMFILE:
        return ""
    return "; raise the limit of this process (LimitNOFILE of its unit, `ulimit -n`)"


async def _handle_accept_error(error: OSError) -> None:
    """Ignore a peer that left before it was accepted; wait a moment when descriptors or memory are
    exhausted. EINVAL means that the socket does not listen now: the parent of several gateway
    processes takes an unresponsive one off the port and puts it back later. Raises other errors.
    """
    if error.errno == errno.EINVAL or error.errno in _NO_ROOM:
        await trio.sleep(_NO_ROOM_S)
    elif error.errno not in _LEFT:
        raise error


async def listen(
    host: str, port: int, *, silent_peer_s: float, is_shared: bool = False
) -> socket.socket:
    """A listening socket. `is_shared`: other processes listen on the same port, and the kernel
    spreads connections over them. The kernel closes the connection of a peer that leaves sent bytes
    unacknowledged for `silent_peer_s`.

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
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise explain_bind_error(error, host, port) from error
    return listener


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """The base URL of the listener."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


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
