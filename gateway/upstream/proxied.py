"""Requests through a proxy that the environment names; the only importer of httpx.

Owns httpx behind the interface of `HttpClient`. Must not know what is asked. It is imported only if
a proxy is configured, because httpx takes a third of the start-up time and 12 MB.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.cookiejar import CookieJar
from typing import Final

import httpx
import trio

from protocol import errors
from protocol.errors import HttpError
from protocol.transport import IDLE_END_S, Body, HttpResponse

LIMITS: Final = httpx.Limits(max_connections=512, max_keepalive_connections=64)


class ProxyError(HttpError):
    """The proxy refused the request."""


class ProxiedClient:
    """Sends requests to the origin of `url` as httpx does, with the proxies of the environment."""

    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        context = httpx.create_ssl_context()
        self._client = httpx.AsyncClient(verify=context, limits=LIMITS, cookies=_NoCookies())

    @property
    def has_proxy(self) -> bool:
        """Whether requests to the origin go through a proxy. httpx reads the environment when the
        client is made, and shows the result nowhere but in its private state.
        """
        client = self._client
        return client._transport_for_url(self._url) is not client._transport  # noqa: SLF001

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        connect_s: float,
        write_s: float,
        read_s: float,
    ) -> AsyncIterator[HttpResponse]:
        """See `HttpClient.exchange`."""
        timeout = httpx.Timeout(read_s, connect=connect_s, pool=connect_s, write=write_s)
        with _translated():
            url = self._url.copy_with(raw_path=target.encode())
            request = self._client.build_request(
                method, url, headers=list(headers), content=body, timeout=timeout
            )
            request.stream = _RequestBody(body)
            request.extensions["trace"] = connects = _Connects()
            # httpx's own limit begins again with each byte, so that a head could take for ever.
            with trio.move_on_after(connect_s + write_s + read_s) as waiting, connects.judged():
                response = await self._client.send(request, stream=True)
            if waiting.cancelled_caught:
                raise errors.ReadTimeout(f"the server sent no whole head in {read_s:g} s")
            # The caller sets one deadline for the whole body; httpx would set one for each read.
            request.extensions["timeout"]["read"] = None
            try:
                yield HttpResponse(
                    response.status_code,
                    [(name.lower(), value) for name, value in response.headers.raw],
                    _ResponseBody(response.aiter_bytes()),
                )
            finally:
                await response.aclose()


class _Connects:
    """Notes, as httpx's trace of one request, whether a connection was made for it."""

    def __init__(self) -> None:
        self._has_connected = False
        self._begun_at = trio.current_time()

    async def __call__(self, event: str, _: object) -> None:
        self._has_connected = self._has_connected or event.endswith("connect_tcp.started")

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Raises `KeptConnectionClosed` if the connection ends soon, before the response, and was
        kept from an earlier request.
        """
        try:
            yield
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            if self._has_connected or trio.current_time() - self._begun_at > IDLE_END_S:
                raise
            raise errors.KeptConnectionClosed(str(error)) from error


class _ResponseBody(Body):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    async def __anext__(self) -> bytes:
        return await anext(self._pieces)


class _RequestBody(httpx.AsyncByteStream):
    """The body of a request. httpx's own is an async generator, which a cancelled request would
    leave to the garbage collector.
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


class _NoCookies(CookieJar):
    """A cookie jar that keeps no cookies, because all clients share it."""

    def extract_cookies(self, response: object, request: object) -> None:
        """See `CookieJar`."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.PoolTimeout as error:
        raise errors.ConnectTimeout(str(error)) from error
    except httpx.ProxyError as error:
        raise ProxyError(str(error)) from error
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
        # Most of our errors have the names of httpx's errors.
        named: type[HttpError] = getattr(errors, type(error).__name__, HttpError)
        raise named(str(error)) from error
