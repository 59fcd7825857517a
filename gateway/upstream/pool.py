"""One long-lived HTTP client, whose pool's leak is mended.

Owns the client and the slots of its pool. httpcore 1.0.9 leaves a connection behind when a request
is cancelled between being given it and using it: the connection stays CONNECTING, belongs to nobody
and holds its slot for ever. Nothing public tells of such connections, so this one file reads and
mends private pool state; and gives it the network of ours, which httpx has no argument for. Must
not know providers.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpcore
import httpx
import trio

from gateway.upstream.network import Network


class RequestBody(httpx.AsyncByteStream):
    """A body in one piece. httpx's own is an async generator, which a request that is cancelled
    while it is sent leaves to the garbage collector.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Once(self._body)


class _Once(AsyncIterator[bytes]):
    def __init__(self, body: bytes) -> None:
        self._left: bytes | None = body

    async def __anext__(self) -> bytes:
        if self._left is None:
            raise StopAsyncIteration
        body, self._left = self._left, None
        return body


class ClientPool:
    """Lends the client; `num_reclaimed` counts the slots that the leak had taken."""

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._client: httpx.AsyncClient | None = None
        self.num_reclaimed = 0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """The client, for one request. Building the first costs 20 ms (the SSL context)."""
        if self._client is None:
            self._client = self._make()
            pool = _pool_of(self._client)
            pool._network_backend = Network(pool._network_backend)  # noqa: SLF001 - see the head
        client = self._client
        try:
            yield client
        finally:
            # Also when cancelled: that is when slots are lost, this request's or another's.
            with trio.CancelScope(shield=True):
                self.num_reclaimed += await reclaim_slots(client)

    async def aclose(self) -> None:
        """Close the connections that are kept alive."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def lost_slots(client: httpx.AsyncClient) -> list[httpcore.AsyncConnectionInterface]:
    """Connections that neither serve a request nor are free for one."""
    pool = _pool_of(client)
    used = [request.connection for request in pool._requests]  # noqa: SLF001 - see the head
    return [
        connection
        for connection in pool.connections
        if not connection.is_idle() and not connection.is_closed() and connection not in used
    ]


async def reclaim_slots(client: httpx.AsyncClient) -> int:
    """Take lost connections out of the pool, give their slots to those that wait, and close them;
    returns how many there were.
    """
    lost = lost_slots(client)
    if lost:
        pool = _pool_of(client)
        for connection in lost:
            pool._connections.remove(connection)  # noqa: SLF001 - see the head
        closing = pool._assign_requests_to_connections()  # noqa: SLF001 - see the head
        for connection in (*lost, *closing):
            await connection.aclose()
    return len(lost)


def _pool_of(client: httpx.AsyncClient) -> httpcore.AsyncConnectionPool:
    transport = client._transport  # noqa: SLF001 - see the head
    assert isinstance(transport, httpx.AsyncHTTPTransport)
    pool = transport._pool  # noqa: SLF001 - see the head
    assert isinstance(pool, httpcore.AsyncConnectionPool)
    return pool
