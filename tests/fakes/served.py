"""An ASGI app on a real port, and a client that speaks raw bytes."""

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11
import msgspec
import trio
from starlette.types import ASGIApp

from gateway.http.server import serve
from gateway.http.server.read_deadlines import Deadlines
from tests.fakes.stream_checker import is_stream
from tests.fakes.stream_checkers import checker_of

PATIENCE_S = 90.0
"""Bounds every wait of a test; nothing is expected to take long."""


@asynccontextmanager
async def served(
    app: ASGIApp, patience_s: float = PATIENCE_S, deadlines: Deadlines | None = None
) -> AsyncIterator[str]:
    """The base URL of `app`, served on a free port for the length of the block."""
    with trio.fail_after(patience_s):
        async with trio.open_nursery() as nursery:
            start = functools.partial(serve, app, host="127.0.0.1", port=0, deadlines=deadlines)
            url: str = await nursery.start(start)
            yield url
            nursery.cancel_scope.cancel()


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class RawClient:
    """One TCP connection; requests are bytes, replies are parsed by h11."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._parser = h11.Connection(h11.CLIENT)
        self._counts_along = False
        self._target = "/v1/chat/completions"

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def post(self, target: str, body: bytes) -> None:
        """A whole POST, whose reply nobody awaits yet."""
        head = f"POST {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> Reply:
        """A whole request and its reply; header names are written with `_` for `-`."""
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        if body and not {"content_length", "transfer_encoding"} & headers.keys():
            named.append(("content-length", str(len(body))))
        host = [] if "host" in headers else [("host", "localhost")]
        head = h11.Request(method=method, target=target, headers=[*host, *named])
        await self.send(self._parser.send(head) or b"")
        if body:
            await self.send(self._parser.send(h11.Data(data=body)) or b"")
        self._parser.send(h11.EndOfMessage())
        self._counts_along = b"continuous_usage_stats" in body
        self._target = target
        reply = await self.reply()
        if self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE:
            self._parser.start_next_cycle()
        return reply

    async def reply(self) -> Reply:
        """The next reply of the server, to its end; a stream is checked."""
        status, headers, body = 0, {}, b""
        while True:
            event = await self.event()
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                checker = checker_of(self._target, counts_along=self._counts_along)
                if checker is not None and is_stream(headers):
                    checker.feed(body)
                    checker.end()
                return Reply(status, headers, body)
            else:
                assert not isinstance(event, h11.ConnectionClosed), "ended within a reply"

    async def event(self) -> Any:
        """The next h11 event."""
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(await self.stream.receive_some(65_536))
        return event

    async def expect(self) -> None:
        """Tell the parser that a POST was written by hand, so that it awaits the reply."""
        self._parser.send(h11.Request(method="POST", target="/", headers=[("host", "herma")]))
        self._parser.send(h11.EndOfMessage())


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[RawClient]:
    """A raw connection to the server at `url`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    stream = await trio.open_tcp_stream(parts.hostname, parts.port)
    async with stream:
        yield RawClient(stream)


async def ask(url: str, method: str, target: str, body: bytes = b"", **headers: str) -> Reply:
    """One request on a connection of its own."""
    async with connected(url) as client:
        return await client.ask(method, target, body, **headers)
