"""The HTTP client of one provider.

Owns which way its requests take: through a transport of our own, or through the client's where the
environment names a proxy for the address. Must not know what is asked.
"""

from collections.abc import AsyncIterator
from http.cookiejar import CookieJar
from typing import Final

import httpx

from gateway.upstream.transport import Transport

LIMITS: Final = httpx.Limits(max_connections=512, max_keepalive_connections=64)


def client_for(
    url: httpx.URL, timeout: httpx.Timeout, limits: httpx.Limits = LIMITS
) -> httpx.AsyncClient:
    """A client for requests to `url`."""
    context, cookies = httpx.create_ssl_context(), _NoCookies()
    usual = httpx.AsyncClient(verify=context, timeout=timeout, limits=limits, cookies=cookies)
    if goes_through_proxy(usual, url):
        return usual
    transport = Transport(url, context, limits)
    return httpx.AsyncClient(transport=transport, timeout=timeout, cookies=cookies)


def goes_through_proxy(client: httpx.AsyncClient, url: httpx.URL) -> bool:
    """Whether HTTP_PROXY and its kin send requests to `url` through a proxy. The client reads them
    when it is made, and tells nobody but in its private state.
    """
    return client._transport_for_url(url) is not client._transport  # noqa: SLF001


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


class _NoCookies(CookieJar):
    """A jar that takes none: all clients' requests go through it."""

    def extract_cookies(self, response: object, request: object) -> None:
        """See `CookieJar`."""
