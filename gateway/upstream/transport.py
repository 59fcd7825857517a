"""What the HTTP client sends its requests through.

Owns the way of one exchange: a connection of the pool, which speaks HTTP/1.1 by httpcore, and a
body that gives it back. A chunked body is read past the parser for as long as its chunks are plain
(`chunks`): the parser costs more than everything else that is done for an event. Must not know
providers.
"""

import math
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final

import httpcore
import httpx
import trio

from gateway.upstream.chunks import PlainChunks
from gateway.upstream.network import Connection, Network
from gateway.upstream.pool import ConnectionPool

BODY: Final = "body"
"""The response's extension that holds its `Body`."""


class KeptConnectionEnded(httpx.RemoteProtocolError):
    """A connection that was kept alive has ended before a word of the answer. Servers close what is
    idle, some after five seconds, and may do so while the request is on its way.
    """


class Transport(httpx.AsyncBaseTransport):
    """Connections to the one origin of `url`, within `limits`."""

    def __init__(self, url: httpx.URL, context: ssl.SSLContext, limits: httpx.Limits) -> None:
        origin, network = _core_url(url).origin, Network()

        def connection() -> httpcore.AsyncHTTPConnection:
            return httpcore.AsyncHTTPConnection(
                origin,
                ssl_context=context,
                keepalive_expiry=limits.keepalive_expiry,
                network_backend=network,
            )

        assert limits.max_connections is not None
        assert limits.max_keepalive_connections is not None
        self.pool = ConnectionPool(
            connection,
            max_connections=limits.max_connections,
            max_idle=limits.max_keepalive_connections,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `AsyncBaseTransport`."""
        asked = httpcore.Request(
            request.method,
            _core_url(request.url),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        pool_s = request.extensions["timeout"]["pool"]
        with _translated():
            connection = await self.pool.lend(math.inf if pool_s is None else pool_s)
            async with AsyncExitStack() as failing:
                failing.push_async_callback(self.pool.take_back, connection)
                response = await self._respond(connection, asked)
                failing.pop_all()
        body = Body(
            response, connection, self.pool, is_chunked=_is_chunked(request.method, response)
        )
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=body,
            extensions={**response.extensions, BODY: body},
        )

    async def _respond(
        self, connection: httpcore.AsyncConnectionInterface, asked: httpcore.Request
    ) -> httpcore.Response:
        was_kept = connection.is_idle()
        try:
            return await connection.handle_async_request(asked)
        except (httpcore.NetworkError, httpcore.RemoteProtocolError) as error:
            if not was_kept:
                raise
            # The others have been idle for longer.
            await self.pool.drop_idle()
            raise KeptConnectionEnded(str(error)) from error

    async def aclose(self) -> None:
        """Close the connections that are kept alive."""
        await self.pool.aclose()


class Body(httpx.AsyncByteStream, AsyncIterator[bytes]):
    """The body of a response as it comes; some pieces may be empty. Closing it gives the connection
    back, which is used again if the body was read to its end.
    """

    def __init__(
        self,
        response: httpcore.Response,
        connection: httpcore.AsyncConnectionInterface,
        pool: ConnectionPool,
        *,
        is_chunked: bool,
    ) -> None:
        assert isinstance(response.stream, AsyncIterable)
        self._response = response
        self._parsed = aiter(response.stream)
        self._connection = connection
        self._pool = pool
        self._is_closed = False
        self._chunks = PlainChunks() if is_chunked else None
        self._stream = response.extensions["network_stream"]
        if isinstance(self._stream, Connection):
            self._stream.expect_body(None if is_chunked else _length(response))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._chunks is not None:
            if self._chunks.rest is None:
                # Not `_translated`: that is ten calls for every event.
                try:
                    return self._chunks.push(await self._stream.receive())
                except httpcore.ReadError as error:
                    raise httpx.ReadError(str(error)) from error
            self._stream.unread(self._chunks.rest)
            if self._chunks.rest.startswith(b"0"):
                self._stream.expect_head()
            else:
                self._stream.expect_chunks()
            self._chunks = None
        with _translated():
            return await anext(self._parsed)

    async def aclose(self) -> None:
        """See `AsyncByteStream`."""
        if self._is_closed:
            return
        self._is_closed = True
        with trio.CancelScope(shield=True):
            try:
                await self._response.aclose()
            finally:
                await self._pool.take_back(self._connection)


def _is_chunked(method: str, response: httpcore.Response) -> bool:
    """Whether the parser, which refuses all other encodings, will read chunks."""
    if method == "HEAD" or response.status in (101, 204, 304):
        return False
    return any(name.lower() == b"transfer-encoding" for name, _ in response.headers)


def _length(response: httpcore.Response) -> int | None:
    """The length that the body has told; the parser has refused all that is none."""
    told = (value for name, value in response.headers if name.lower() == b"content-length")
    return next(map(int, told), None)


@contextmanager
def _translated() -> Iterator[None]:
    """The client's exceptions for those of the layer below; they have the same names."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as error:
        translated: type[httpx.TransportError] = getattr(httpx, type(error).__name__)
        raise translated(str(error)) from error


def _core_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
    )
