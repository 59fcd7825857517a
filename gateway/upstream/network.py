"""The sockets under the HTTP client, read without a deadline per read.

Owns the one difference from the client's own network: a read that is given no timeout costs no
cancel scope (a quarter of what an event of a stream costs). Must not know HTTP.
"""

from collections.abc import Iterable
from ssl import SSLContext
from typing import Any

import httpcore
import trio


class Network(httpcore.AsyncNetworkBackend):
    """The network `inner`, which is trio's, with reads of our own."""

    def __init__(self, inner: httpcore.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """See `AsyncNetworkBackend`."""
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream)

    async def sleep(self, seconds: float) -> None:
        """See `AsyncNetworkBackend`."""
        await trio.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        # Nothing public leads from the client's stream to trio's, in TLS or not.
        self._receive = inner._stream.receive_some  # type: ignore[attr-defined] # noqa: SLF001

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if timeout is not None:
            return await self._inner.read(max_bytes, timeout)
        try:
            data: bytes = await self._receive(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.ReadError(str(error)) from error
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - the client's own signature
        return self._inner.get_extra_info(info)
