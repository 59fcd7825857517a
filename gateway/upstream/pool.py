"""One long-lived HTTP client, guarded against its pool's leak.

Owns the client and how many requests are in it. httpcore 1.0.9 can leave connections in
CONNECTING after cancelled requests: they hold their slots for ever. Nothing public tells of them,
so this one file reads private pool state, and replaces the client when such a slot is seen while
nothing is being requested. Must not know providers.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import trio


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
    """Lends the current client; `num_replaced` counts how often the leak struck."""

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._client: httpx.AsyncClient | None = None
        self._num_active = 0
        self.num_replaced = 0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """The client, for one request. Building the first costs 20 ms (the SSL context)."""
        client = self._client = self._client or self._make()
        self._num_active += 1
        try:
            yield client
        finally:
            self._num_active -= 1
            if self._num_active == 0 and client is self._client and num_stuck(client):
                self._client = None
                self.num_replaced += 1
                with trio.CancelScope(shield=True):
                    await client.aclose()

    async def aclose(self) -> None:
        """Close the connections that are kept alive."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def num_stuck(client: httpx.AsyncClient) -> int:
    """How many pool slots are being connected; leaked ones if nothing is being requested."""
    pool = getattr(client._transport, "_pool", None)  # noqa: SLF001 (see the head of this file)
    connections = pool.connections if pool is not None else ()
    return sum("CONNECTING" in connection.info() for connection in connections)
