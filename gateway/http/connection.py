"""One connection of hypercorn, with what 0.18 leaves undone.

Owns the few lines that reach into hypercorn; its version is pinned in constraints.txt and tests
on real sockets hold it to this. Must not know the app.

hypercorn keeps the task and the socket of a connection that its client has closed until the
keep-alive timer runs out. Agents open a connection per request, so thousands would pile up. And
a client that asks for an upgrade to HTTP/2 and leaves makes a task wait forever; HTTP/2 belongs
to a front proxy.
"""

import trio
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from gateway.http.errors import error_of


class Connections:
    """Handles accepted connections. `end_idle` closes those between requests, and each of the
    others with its answer.
    """

    def __init__(self, app: ASGIApp, config: Config) -> None:
        self._app = wrap_app(app, config.wsgi_max_body_size, "asgi")
        self._config = config
        self._context = WorkerContext(None)

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end; its failure is logged and ends no other one."""
        connection = _Connection(
            self._app, self._config, self._context, ConnectionState({}), stream
        )
        await error_of(connection.run())

    async def end_idle(self) -> None:
        """No connection takes another request."""
        await self._context.terminated.set()


class _Connection(TCPServer):  # type: ignore[misc] # hypercorn is not followed by mypy
    """Speaks HTTP/1.1 only. Stops the keep-alive timer once the client has gone, and never starts
    it again.
    """

    _peer_gone = False

    async def _read_data(self) -> None:
        self.protocol.protocol._check_protocol = _stay_with_http1  # noqa: SLF001 - see above
        await super()._read_data()
        self._peer_gone = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if self._peer_gone and isinstance(event, Updated):
            return
        await super().protocol_send(event)


async def _stay_with_http1(_request: object) -> None:
    """Upgrade no connection, whatever its client offers."""
