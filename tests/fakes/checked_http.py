"""HTTP clients that check every stream which they read, so that no test has to think of it.

Owns the seam: transports of httpx, and of the fork that the official client has. What a stream must
be is `stream_checker`'s.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import httpx2

from tests.fakes.stream_checker import StreamChecker, is_stream
from tests.fakes.stream_checkers import checker_of


class _Checked:
    """The bytes of a reply, checked as the test reads them."""

    def __init__(self, inner: Any, path: str) -> None:
        self._inner = inner
        self._checker = checker_of(path) or StreamChecker()

    def __iter__(self) -> Iterator[bytes]:
        for data in self._inner:
            self._checker.feed(data)
            yield data
        self._checker.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            self._checker.feed(data)
            yield data
        self._checker.end()

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()


class _CheckedStream(_Checked, httpx.SyncByteStream, httpx.AsyncByteStream):
    pass


class _CheckedStream2(_Checked, httpx2.SyncByteStream, httpx2.AsyncByteStream):
    pass


class _Transport(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if is_stream(response.headers):
            response.stream = _CheckedStream(response.stream, request.url.path)
        return response


class _AsyncTransport(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if is_stream(response.headers):
            response.stream = _CheckedStream(response.stream, request.url.path)
        return response


class _Transport2(httpx2.HTTPTransport):
    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if is_stream(response.headers):
            response.stream = _CheckedStream2(response.stream, request.url.path)
        return response


def checked_client(base_url: str = "", *, timeout_s: float = 60) -> httpx.Client:
    """A client that raises `StreamFault` while a stream of ours is read that is not right."""
    return httpx.Client(
        transport=_Transport(), base_url=base_url, timeout=timeout_s, trust_env=False
    )


def checked_async_client(
    base_url: str = "", *, timeout_s: float = 60, max_connections: int = 100
) -> httpx.AsyncClient:
    """A client for trio that checks every stream which it reads."""
    limits = httpx.Limits(max_connections=max_connections)
    transport = _AsyncTransport(limits=limits)
    return httpx.AsyncClient(
        transport=transport, base_url=base_url, timeout=timeout_s, trust_env=False
    )


def checked_sdk_client(*, timeout_s: float = 600) -> httpx2.Client:
    """What the official client takes as `http_client`."""
    return httpx2.Client(transport=_Transport2(), timeout=timeout_s, trust_env=False)
