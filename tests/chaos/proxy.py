"""A TCP proxy that can be cut or turned into a black hole: the network between worker and gateway.

Owns the connections through it. Must not know what they carry.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

_CHUNK_BYTES = 65_536


class Proxy:
    """Passes bytes both ways until told otherwise; `port` is where it listens."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self._flows = trio.Event()
        self._flows.set()
        self._is_cut = False
        self._connections: set[trio.CancelScope] = set()
        self.port = 0

    def cut(self) -> None:
        """Reset what is connected, and refuse what comes."""
        self._is_cut = True
        for scope in list(self._connections):
            scope.cancel()

    def swallow(self) -> None:
        """From now on nothing passes and nobody is told, as when a cable is pulled."""
        self._flows = trio.Event()

    def heal(self) -> None:
        """Pass everything on again, first of all what was held back."""
        self._is_cut = False
        self._flows.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen on a free port of the loopback until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            task_status.started()
            await trio.serve_listeners(self._connection, listeners, handler_nursery=nursery)

    async def _connection(self, near: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                async with near:
                    if self._is_cut:
                        return
                    await self._join(near, scope)
            finally:
                self._connections.remove(scope)

    async def _join(self, near: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            far = await trio.open_tcp_stream("127.0.0.1", self.target_port)
        except OSError:
            return
        async with far, trio.open_nursery() as nursery:
            for one, other in ((near, far), (far, near)):
                nursery.start_soon(self._pass_on, one, other, scope)

    async def _pass_on(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some(_CHUNK_BYTES):
                await self._flows.wait()
                await sink.send_all(data)
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@asynccontextmanager
async def open_proxies(count: int, target_port: int) -> AsyncIterator[list[Proxy]]:
    """Proxies to one port, for the length of the block."""
    proxies = [Proxy(target_port) for _ in range(count)]
    async with trio.open_nursery() as nursery:
        for proxy in proxies:
            await nursery.start(partial(proxy.run))
        yield proxies
        nursery.cancel_scope.cancel()
