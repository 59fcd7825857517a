"""Our server: accepts connections, looks after their deadlines, drains.

Owns the set of open connections, the listener's life and the `Date` header. Must not know HTTP.
"""

import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from email.utils import formatdate
from typing import Final

import trio
from starlette.types import ASGIApp

from gateway.http.response_writer import write_batch
from gateway.http.responses import ClientGone, error_of
from gateway.http.server.connection import Address, Connection, Service
from gateway.http.server.limits import Deadlines, Limits
from gateway.http.server.listen import SHUTDOWN_GRACE_S, SILENT_PEER_S, listen, url_of
from gateway.http.server.readers import Readers
from gateway.runtime import coalesced_tick

_MAX_ACCEPTS: Final = 64
"""So many per turn of the loop, so that a storm of connections does not stop the others."""
_NO_ROOM_S: Final = 0.1
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_LEFT: Final = frozenset(
    {
        *(errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENOPROTOOPT, errno.EOPNOTSUPP),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT),
    }
)
"""Linux tells on accepting what became of the network to that one peer, or that it is filtered."""

_log = logging.getLogger(__name__)


async def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    shutdown_trigger: Callable[[], Awaitable[None]] | None = None,
    drain_s: float = SHUTDOWN_GRACE_S,
    silent_peer_s: float = SILENT_PEER_S,
    limits: Limits | None = None,
    deadlines: Deadlines | None = None,
    is_shared: bool = False,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until cancelled, or until `shutdown_trigger` returns: then the port closes,
    idle connections too, and requests being answered get `drain_s` to end. A peer that leaves
    what was sent unread for `silent_peer_s` is given up. `is_shared`: see `listen`.

    `task_status` gets the base URL ("http://127.0.0.1:8080") once connections are accepted.
    Raises `ConfigError` when the address cannot be bound.
    """
    listener = await listen(host, port, silent_peer_s=silent_peer_s, is_shared=is_shared)
    readers = Readers()
    service = Service(
        app=app,
        limits=limits or Limits(),
        deadlines=deadlines or Deadlines(),
        silent_peer_s=silent_peer_s,
        date=HttpDate(time.time),
        step=write_batch,
        readers=readers,
    )
    connections = Connections(service, listener.getsockname()[:2])
    with closing(readers):
        async with trio.open_nursery() as upkeep:
            upkeep.start_soon(connections.sweep)
            upkeep.start_soon(readers.run)
            async with trio.open_nursery() as handlers:
                with listener:
                    async with trio.open_nursery() as accepting:
                        accepting.start_soon(_accept, listener, connections, handlers)
                        task_status.started(url_of(listener))
                        await (shutdown_trigger or trio.sleep_forever)()
                        accepting.cancel_scope.cancel()
                connections.end_soon()
                handlers.cancel_scope.deadline = trio.current_time() + drain_s
            upkeep.cancel_scope.cancel()


class HttpDate:
    """The `Date` line of a response, made once a second."""

    def __init__(self, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._second = -1
        self._line = b""

    def __call__(self) -> bytes:
        second = int(self._unix_time())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line


class Connections:
    """Those that are open."""

    def __init__(self, service: Service, here: Address | None) -> None:
        self._service = service
        self._here = here
        self._open: set[Connection] = set()
        self._is_ending = False

    async def handle(self, accepted: socket.socket, peer: Address | None) -> None:
        """Serve one connection to its end."""
        with accepted:
            async with trio.open_nursery() as nursery:
                connection = Connection(self._service, accepted, peer, self._here, nursery)
                self._open.add(connection)
                if self._is_ending:
                    connection.end_soon()
                try:
                    with suppress(ClientGone):
                        await connection.serve()
                    nursery.cancel_scope.cancel()
                finally:
                    self._open.discard(connection)
                    connection.hear_no_more()

    async def sweep(self) -> None:
        """Look after the deadlines of all connections until cancelled. A failure is logged and
        ends its connection.
        """
        sweep_s = min(self._service.deadlines.sweep_s, self._service.silent_peer_s / 4)
        while True:
            await coalesced_tick(sweep_s)
            now = trio.current_time()
            for connection in tuple(self._open):
                if await error_of(_sweep, connection, now) is not None:
                    connection.lose()

    def end_soon(self) -> None:
        """No connection takes another request."""
        self._is_ending = True
        for connection in tuple(self._open):
            connection.end_soon()


async def _sweep(connection: Connection, now: float) -> None:
    connection.sweep(now)


async def _accept(
    listener: socket.socket, connections: Connections, handlers: trio.Nursery
) -> None:
    """Accept until cancelled, each connection into a task of `handlers`: its failure is logged and
    ends no other one.
    """
    while True:
        await trio.lowlevel.wait_readable(listener)
        for _ in range(_MAX_ACCEPTS):
            try:
                accepted, peer = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                await _bear(error)
                break
            accepted.setblocking(False)
            handlers.start_soon(error_of, connections.handle, accepted, peer[:2])


async def _bear(error: OSError) -> None:
    """A peer that left before it was accepted is nobody's loss; without descriptors or memory we
    wait until there are some. Raises all else.
    """
    if error.errno in _NO_ROOM:
        _log.error("cannot accept a connection: %s", error.strerror)
        await trio.sleep(_NO_ROOM_S)
    elif error.errno not in _LEFT:
        raise error
