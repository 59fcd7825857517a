"""The app over hypercorn's trio connections: the other server behind the same seam.

Owns the few lines that reach into hypercorn, and what it leaves undone; its version is pinned in
constraints.txt and tests on real sockets hold it to this. Must not know routes.

- hypercorn keeps the task and the socket of a connection that its client has closed until the
  keep-alive timer runs out. Agents open a connection per request, so thousands would pile up.
- A client that asks for an upgrade to HTTP/2 and leaves makes a task wait forever; HTTP/2 belongs
  to a front proxy.
- It has no deadline for bodies, and an app that answers before it has read a body waits forever.
- It shields its writes from cancellation, so a client that stops reading could hold a shutdown
  forever; TCP_USER_TIMEOUT makes the kernel give such a peer up.
"""

import functools
import logging
from collections.abc import Awaitable, Callable

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Event, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api import ApiError
from gateway.http.errors import error_of
from gateway.http.server.limits import Deadlines, Limits
from gateway.http.server.lingering_close import LingeringClose
from gateway.http.server.listen import SHUTDOWN_GRACE_S, SILENT_PEER_S, listen, url_of

_log = logging.getLogger(__name__)


async def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    shutdown_trigger: Callable[[], Awaitable[None]] | None = None,
    drain_s: float = SHUTDOWN_GRACE_S,
    silent_peer_s: float = SILENT_PEER_S,
    is_shared: bool = False,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """As `gateway.http.server.serving.serve`."""
    listener = await listen(host, port, silent_peer_s=silent_peer_s, is_shared=is_shared)
    connections = _Connections(LingeringClose(Patient(app)))
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
            task_status.started(url_of(listener))
            await (shutdown_trigger or trio.sleep_forever)()
            accepting.cancel_scope.cancel()
        await connections.end_idle()
        handlers.cancel_scope.deadline = trio.current_time() + drain_s


class Patient:
    """Pure ASGI: a body that falls silent is an `ApiError` 408 for who waits for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._silence_s = Deadlines().body_silence_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_whole = False

        async def receive_in_time() -> Message:
            nonlocal is_whole
            if is_whole:
                return await receive()
            with trio.move_on_after(self._silence_s) as silence:
                message = await receive()
            if silence.cancelled_caught:
                raise ApiError(408, "The rest of the request's body did not arrive in time.")
            is_whole = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time, send)


class _Connections:
    """Handles accepted connections. `end_idle` closes those between requests, and each of the
    others with its answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._config = _hypercorn_config()
        self._app = wrap_app(app, self._config.wsgi_max_body_size, "asgi")
        self._context = WorkerContext(None)

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end; its failure is logged and ends no other one."""
        connection = _Connection(
            self._app, self._config, self._context, ConnectionState({}), stream
        )
        await error_of(connection.run)

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


def _hypercorn_config() -> HypercornConfig:
    config = HypercornConfig()
    config.accesslog = None
    config.errorlog = _log
    config.keep_alive_timeout = Deadlines().idle_s
    config.h11_max_incomplete_size = Limits().max_head_bytes
    config.include_server_header = False
    return config
