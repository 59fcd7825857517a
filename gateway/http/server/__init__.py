"""The app on a port, whoever serves it.

Owns the one door to serving HTTP. Must not know routes.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio
from starlette.types import ASGIApp

from config import ServerName
from gateway.http.server.listen import SHUTDOWN_GRACE_S, SILENT_PEER_S
from gateway.http.server.serving import serve

__all__ = ["Serve", "serve", "server_named"]


class Serve(Protocol):
    """Serves an app until cancelled, or until `shutdown_trigger` returns and `drain_s` are over."""

    async def __call__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        shutdown_trigger: Callable[[], Awaitable[None]] | None = None,
        drain_s: float = SHUTDOWN_GRACE_S,
        silent_peer_s: float = SILENT_PEER_S,
        is_shared: bool = False,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None: ...


def server_named(name: ServerName) -> Serve:
    """The server that the configuration asks for."""
    if name == "herma":
        return serve
    # 25 ms and 10 MB that nobody else is to pay.
    from gateway.http.server import hypercorn  # noqa: PLC0415

    return hypercorn.serve
